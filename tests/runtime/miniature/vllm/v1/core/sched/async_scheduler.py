"""The scheduler that reserves a placeholder for each token it expects."""

from vllm.v1.core.sched.scheduler import Scheduler


class AsyncScheduler(Scheduler):
    """Dies of a token that it did not expect."""

    def _update_after_schedule(self, scheduled):
        for request_id in scheduled:
            request = self.requests[request_id]
            if request.num_computed_tokens >= request.num_tokens:
                request.num_output_placeholders += 1

    def _update_request_with_output(self, request, new_token_ids):
        delivered = super()._update_request_with_output(request, new_token_ids)
        request.num_output_placeholders -= len(new_token_ids)
        assert request.num_output_placeholders >= 0
        return delivered
