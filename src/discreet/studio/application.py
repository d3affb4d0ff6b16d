"""The page and its answers, for a browser on this machine only.

A page of another site that the user has open may not read anything here: requests must name this machine as host
(a foreign name that resolves to it is refused), must not come from another origin, and must carry JSON. Other users
of this machine can reach the port too: whoever asks for anything but the empty page must know the token, which stands
behind the # of the address. Browsers do not send that part, so the page reads it there and sends it in a header; a
cookie would go to every other port of this machine as well.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from discreet.errors import DiscreetError, InvalidParameter, whole
from discreet.guarantee import upper_text
from discreet.ledger import Ledger
from discreet.ledger.filters import Filter
from discreet.plan.plan import Plan
from discreet.studio.planning import Wish, curves, export_plan, forecast_answer, price_plan, together_answer

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MOST_BYTES = 10_000
TOKEN_HEADER = "X-Discreet-Token"

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def application(ledger: Ledger | None = None, *, token: str) -> Starlette:
    """The studio as an ASGI application; ``ledger`` is shown if given, and never written to.

    ``token`` is what every question must bring in the header ``X-Discreet-Token``.
    """

    async def show_ledger(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(ledger_facts, ledger))

    def fits(data: Any) -> dict[str, Any]:
        fits, why = (None, "") if ledger is None else fits_into(ledger, Wish.from_dict(data).plan())
        return {"fits": fits, "why": why}

    questions: dict[str, Callable[[Any], dict[str, Any]]] = {
        "price": lambda data: price_plan(Wish.from_dict(data)),
        "curves": lambda data: curves(Wish.from_dict(data)),
        "export": lambda data: export_plan(Wish.from_dict(data)),
        "fits": fits,
        "tables": forecast_answer,
        "parties": together_answer,
    }
    routes = [
        Route("/", lambda request: FileResponse(STATIC / "index.html")),
        *(Route(f"/api/{name}", _endpoint(answer), methods=["POST"]) for name, answer in questions.items()),
        Route("/api/ledger", show_ledger),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(LoopbackOnly, token=token)])


class LoopbackOnly(BaseHTTPMiddleware):
    """Refuses foreign hosts and origins, and who does not know the token; tells browsers to be strict."""

    def __init__(self, app: Any, token: str) -> None:
        super().__init__(app)
        self._token = token.encode()

    async def dispatch(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Answer, or 403, or 401."""
        if not _is_ours(request):
            response = Response("This page is local.", 403)
        elif request.url.path.startswith("/api/") and not self._knows(request):
            response = JSONResponse(
                {"error": "Open the address that the studio printed: its token is missing."}, 401
            )
        else:
            response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    def _knows(self, request: Request) -> bool:
        """True if the request brings the token; how long it takes tells nothing of it."""
        return hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), self._token)


def _is_ours(request: Request) -> bool:
    host = request.headers.get("host", "")
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    return name in LOOPBACK and origin in (None, f"http://{host}") and site in ("same-origin", "none")


def _endpoint(answer: Callable[[Any], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that turns a wish into an answer, or into the sentence why there is none."""

    async def endpoint(request: Request) -> Response:
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            return JSONResponse({"error": "Send application/json."}, 415)
        body = await request.body()
        if len(body) > _MOST_BYTES:
            return JSONResponse({"error": "That is too long for a wish."}, 413)
        try:
            data = await request.json()
            return JSONResponse(await run_in_threadpool(lambda: answer(data)))
        except DiscreetError as error:
            return JSONResponse({"error": str(error)})  # an answer too: no failure for the browser to log
        except (ValueError, RecursionError):  # the latter from brackets within brackets
            return JSONResponse({"error": "That is no JSON, or holds no finite number."}, 400)

    return endpoint


def ledger_facts(ledger: Ledger | None) -> dict[str, Any]:
    """Budget, promise and runs of a ledger, for the page."""
    if ledger is None:
        return {"ledger": None}
    budget, guarantee, statement = ledger.rule.budget, ledger.guarantee(), ledger.statement()
    runs = [
        {"name": run.name, "plan": run.plan_hash[:12], "taken": sum(run.taken)}
        | {"planned": sum(count for _, count in run.event.parts())}
        for run in statement.runs
    ]
    promise = f"epsilon at most {upper_text(guarantee.epsilon.upper)} at delta {upper_text(guarantee.delta)}"
    rule = {"kind": ledger.rule.kind, "epsilon": budget.epsilon, "delta": budget.delta}
    spent = {"spent": spent_share(ledger), "data": _by_data(ledger)}
    return {"ledger": rule | {"neighbours": budget.neighbours, "promise": promise, "runs": runs} | spent}


def spent_share(ledger: Ledger) -> float:
    """The share of the budget that is spent: of a filter's fullest purse, or of the steps of a fixed plan."""
    rule, statement = ledger.rule, ledger.statement()
    if isinstance(rule, Filter):
        totals = rule.totals(statement.spent())
        return min(1.0, max(float(total / limit) for total, limit in zip(totals, rule.limits(), strict=True)))
    planned = sum(count for run in statement.runs for _, count in run.event.parts())
    return sum(sum(run.taken) for run in statement.runs) / planned if planned else 0.0


def fits_into(ledger: Ledger, plan: Plan) -> tuple[bool, str]:
    """Whether the ledger has room for all of the plan and protects the same unit; if not, why."""
    budget = ledger.rule.budget
    if (budget.neighbours, budget.group_size) != (plan.neighbours, plan.group_size):
        return False, f"it protects another unit: {budget}"
    try:
        return (True, "") if ledger.remaining(plan.event) >= 1 else (False, "too little is left")
    except DiscreetError as error:
        return False, str(error)


def _by_data(ledger: Ledger) -> list[dict[str, Any]]:
    """Count the charged releases by data set; the ledger stores a digest of each name."""
    counts: dict[str, int] = {}
    for run in ledger.runs().values():
        name = (run.data or "unnamed")[:12]
        counts[name] = counts.get(name, 0) + sum(run.taken)
    return [{"data": name, "releases": count} for name, count in counts.items()]


def listener_on(port: int) -> socket.socket:
    """A socket that listens on loopback; 0 takes a free port. A browser that comes early waits for the server."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", whole("port", port, at_least=0, at_most=65535)))
        listener.listen()
    except OSError:
        listener.close()
        remedy = "is in use or not allowed; leave it out to take a free one."
        raise InvalidParameter("port", port, remedy) from None
    return listener


def serve(listener: socket.socket, token: str, ledger: Ledger | None = None) -> None:
    """Answer those who know the token until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(application(ledger, token=token), log_level="error", access_log=False)
    config.timeout_graceful_shutdown = (
        1  # a browser that keeps its connection open does not keep the studio open
    )
    uvicorn.Server(config).run(sockets=[listener])
