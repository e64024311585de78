"""The verdicts from a source alone: a tree or a wheel is read, and nothing of it is run.

The probes of imported modules run on modules that are interpreted: their syntax trees are carried
out on the same stand-ins, with a short list of what may happen (`libraries`, `values`). So what
counts is what the code does; names, comments and versions do not. Whatever the interpreter does
not know makes a verdict `unknown`.
"""
