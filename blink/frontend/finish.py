"""How a request's end in the ring reads in the API. The scheduler alone decides which token ends an answer."""

from __future__ import annotations

from blink.ring.layout import Reason

FINISH = {Reason.EOS: "stop", Reason.STOP_ID: "stop", Reason.LENGTH: "length"}
"""``finish_reason`` of every normal end; any other reason is a failure (:func:`blink.frontend.errors.from_reason`)."""

ENDED_BY_TOKEN = (Reason.EOS, Reason.STOP_ID)
"""The ends for which the last token of the answer is the cause. Its publication and that of the reason are one
(docs/protocol.md), so it is the last token of the update that has the reason."""
