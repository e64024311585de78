"""A scheduler that gives each request up to four tokens a frame."""

from types import SimpleNamespace

TOKENS_A_FRAME = 4


class Scheduler:
    """Delivers whatever token comes back; the asynchronous one asserts that it expected it."""

    def __init__(self) -> None:
        self.requests = {}
        self.max_model_len = 1 << 20

    def add_request(self, request):
        self.requests[request.request_id] = request

    def schedule(self):
        scheduled = {}
        new = [SimpleNamespace(req_id=r.request_id) for r in self.requests.values() if _is_new(r)]
        for request in self.requests.values():
            known = request.num_tokens + request.num_output_placeholders
            count = min(known - request.num_computed_tokens, TOKENS_A_FRAME)
            if count:
                scheduled[request.request_id] = count
                request.num_computed_tokens += count
        self._update_after_schedule(scheduled)
        return SimpleNamespace(
            num_scheduled_tokens=scheduled,
            scheduled_new_reqs=new,
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
            scheduled_spec_decode_tokens={},
        )

    def update_from_output(self, scheduler_output, model_runner_output):
        delivered = {}
        for request_id, index in model_runner_output.req_id_to_index.items():
            request = self.requests.get(request_id)
            tokens = model_runner_output.sampled_token_ids[index]
            if request is not None and tokens:
                delivered[request_id], _ = self._update_request_with_output(request, tokens)
        return delivered

    def _update_after_schedule(self, scheduled):
        pass

    def _update_request_with_output(self, request, new_token_ids):
        for token in new_token_ids:
            request.append_output_token_ids(token)
        return new_token_ids, False

    def _free_request(self, request):
        del self.requests[request.request_id]


def _is_new(request):
    return request.num_computed_tokens == 0
