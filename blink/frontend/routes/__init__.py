"""The endpoints, a file for each kind."""

from __future__ import annotations

from fastapi import APIRouter

from blink.frontend.routes import completions, operations, tokens

router = APIRouter()
for part in (completions, tokens, operations):
    router.include_router(part.router)
