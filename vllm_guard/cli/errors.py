"""What a command raises when it cannot be carried out."""


class CommandError(Exception):
    """Its message is the one line the user sees: what, where, what was found, what to do."""
