"""A request, as far as the miniature scheduler and vllm-guard read it."""


class Request:
    """``prompt_length`` tokens to prefill, then decoding without end."""

    def __init__(self, request_id: str, prompt_length: int) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = prompt_length
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.output_token_ids: list[int] = []

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + len(self.output_token_ids)

    def append_output_token_ids(self, token: int) -> None:
        self.output_token_ids.append(token)

    def is_finished(self) -> bool:
        return False
