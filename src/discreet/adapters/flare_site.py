"""A site of an NVFlare job, private: :class:`FlareSite` for its Client API.

flare.init()
site = FlareSite(plan, model, optimizer, losses, loader, rounds=5, folder="/srv/dp/site-1")
while flare.is_running():
    flare.send(site.train(flare.receive()))
"""

from __future__ import annotations

from discreet.adapters.federated_site import PrivateSite
from discreet.errors import InvalidParameter, missing_extra

try:
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
except ImportError as error:
    raise missing_extra(f"discreet.adapters.flare_site needs {error.name}", "parties") from None


class FlareSite(PrivateSite):
    """A :class:`~discreet.adapters.federated_site.PrivateSite` that answers models of NVFlare."""

    def train(self, received: FLModel) -> FLModel:
        """Answer one training task of a job with weights that are private, and public numbers.

        ``metrics`` of the answer holds ``privacy_epsilon``, ``privacy_delta``, ``privacy_steps`` and
        ``privacy_trained``. Metrics that you add are covered by no guarantee; compute them from public records. The
        server weighs the answer by the planned number of steps, which does not depend on the records.
        """
        if not isinstance(received, FLModel) or received.params_type != ParamsType.FULL:
            remedy = "must be a model of the server with full weights; stop when flare.is_running() is False."
            raise InvalidParameter("received", type(received).__name__, remedy)
        result = self.train_round(received.params)
        meta = {"NUM_STEPS_CURRENT_ROUND": self.steps_per_round, "privacy_note": result.note}
        return FLModel(ParamsType.FULL, result.weights, metrics=result.metrics, meta=meta)
