"""The annotator's and the operator's page, and what they load."""

from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse, Response

from bitta.server.api.errors import Refused
from bitta.server.pages import HEADERS, PAGES


def install_pages(app: FastAPI) -> None:
    """Pages at the root, files under /static; no path is ever looked up on the disk."""
    for address in PAGES:
        if not address.startswith("/static/"):
            app.add_api_route(address, _page, include_in_schema=False, methods=["GET", "HEAD"])
    app.add_api_route(
        "/static/{name:path}", _page, include_in_schema=False, methods=["GET", "HEAD"]
    )
    app.add_api_route("/", _start, include_in_schema=False, methods=["GET", "HEAD"])


async def _start() -> Response:
    return RedirectResponse("/annotate")


async def _page(request: Request) -> Response:
    page = PAGES.get(request.url.path)
    if page is None:
        raise Refused(404, "there is no such page.")
    headers = {**HEADERS, "ETag": page.etag}
    if request.headers.get("if-none-match") == page.etag:
        return Response(status_code=304, headers=headers)
    return Response(page.body, media_type=page.content_type, headers=headers)
