"""Chooses the replica of a request on Ray Serve. Only Ray imports this file."""

import hashlib
import random
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

SECOND_CHOICES = 2  # other replicas of a session, if its own is overloaded


class SessionRouter(RequestRouter):
    """Sends all requests of a session to one replica, and other requests to the less busy of two random replicas.

    The web page needs this, as a replica keeps the images that were opened on it. The session is the header
    `x-session-id`. Its replica is the one with the highest hash, so few sessions move when the replicas change.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        session = pending_request.metadata.session_id if pending_request is not None else ""
        if not session:
            return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]

        def score(replica: Any) -> bytes:
            return hashlib.sha256(f"{replica.replica_id.unique_id} {session}".encode()).digest()

        return [[replica] for replica in sorted(candidate_replicas, key=score)[-1 - SECOND_CHOICES :][::-1]]
