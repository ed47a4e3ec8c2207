from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from .serving import Served, serving
from .small_runs import write_run

SECRET = "what no page may show"


def test_answers_allow_only_what_comes_from_this_server(served: Served):
    for path in (
        "/",
        "/api/runs",
        "/api/run/none",
        "/static/plotly.min.js",
        "/api/live?cursor=bad&run=first",
    ):
        headers = served.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe-eval" not in policy
        assert not re.search(r"script-src[^;]*unsafe", policy)
        assert not re.search(r"https?:", policy)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "[::2]:80", ""],
)
def test_a_name_that_leads_here_from_elsewhere_is_refused(served: Served, host: str):
    reply = served.get("/api/runs", Host=host)
    assert reply.status == 403
    assert "Host" in reply.error


def test_another_site_may_not_read_runs(served: Served):
    assert served.get("/api/runs", Sec_Fetch_Site="cross-site").status == 403
    assert served.get("/api/runs", Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reading_is_answered(served: Served, method: str):
    assert served.get("/api/runs", method).status == 405


def test_a_server_that_others_reach_wants_its_token(runs: Path):
    with serving(runs, host="0.0.0.0") as served:
        assert served.token is not None
        assert len(served.token) >= 32
        closed = served.get("/")
        assert closed.status == 401
        assert b"token" in closed.body
        assert closed.headers["content-type"].startswith("text/html")
        assert served.get("/api/runs").status == 401
        for wrong in ("", "x", served.token[:-1], served.token + "x", "%FF%00"):
            assert served.get(f"/api/runs?token={wrong}").status == 401
            assert (
                served.get("/api/runs", Cookie=f"loopwright_token_{served.port}={wrong}").status
                == 401
            )
        opened = served.get(f"/curves?token={served.token}&x=wall")
        assert (opened.status, opened.headers["location"]) == (303, "/curves?x=wall")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=lax" in cookie.lower()
        both = f"other=a b; {cookie.partition(';')[0]}; =; x"
        assert served.get("/api/runs", Cookie=both, Host="anything.example").status == 200


def test_a_token_in_the_address_leads_to_no_other_host(runs: Path):
    with serving(runs, host="0.0.0.0") as served:
        for path in ("//evil.example/", "/\\evil.example", "/%2fevil.example", "/%5cevil.example/"):
            location = served.get(f"{path}?token={served.token}").headers["location"]
            assert re.match(r"/(?![/\\])", location)


def secret_folder(tmp_path: Path) -> Path:
    """A folder of runs with secrets beside it, and links that lead to them."""
    outside = tmp_path / "outside"
    write_run(outside / "other", name=SECRET, media=False)
    (outside / "secret.txt").write_text(SECRET)
    (outside / "secret.yaml").write_text(f"key: {SECRET}\n")
    root = tmp_path / "runs"
    write_run(root / "first")
    os.symlink(outside / "other", root / "linked")
    os.symlink(outside, root / "folder")
    for name, target in (
        ("config.yaml", "secret.yaml"),
        ("run.json", "other/run.json"),
        ("metrics.sqlite", "secret.txt"),
    ):
        run = write_run(root / f"has-{name}", media=False)
        (run / name).unlink()
        os.symlink(outside / target, run / name)
    run = write_run(root / "soft", state="failed")
    for name in ("log.txt", "profile.json", "code.diff"):
        os.symlink(outside / "secret.txt", run / name)
    (run / "media").rename(run / "old")
    os.symlink(outside, run / "media")
    return root


def test_no_link_leads_out_of_the_folder(tmp_path: Path):
    with serving(secret_folder(tmp_path)) as served:
        runs = {run["id"]: run for run in served.data("/api/runs")["runs"]}
        assert set(runs) == {
            "first",
            "linked",
            "has-config.yaml",
            "has-run.json",
            "has-metrics.sqlite",
            "soft",
        }
        for name in set(runs) - {"first", "soft"}:
            assert runs[name]["state"] == "unreadable"
            assert "link" in runs[name]["problems"][0]
        shown = [served.get("/api/runs").body]
        for run in (*runs, "folder/other"):
            part = quote(run, safe="")
            paths = [
                f"{kind}/{part}" for kind in ("run", "log", "checkpoints", "contents", "media")
            ]
            paths += [f"media/{part}/{number}" for number in range(1, 9)]
            paths += [
                f"{kind}?run={part}&run=first&name=loss"
                for kind in ("curves", "csv", "compare", "events")
            ]
            shown += [served.get(f"/api/{path}").body for path in paths]
        assert not [body for body in shown if SECRET.encode() in body]


STEPS = ".. %2e%2e ..%2f.. ....// %252e%252e . / %00 %ff \\.. ~ first *"
ENDS = "outside/secret.txt etc/passwd outside/other run.json metrics.sqlite first %0d%0aX:y"
HEADS = (
    "/static/ /api/run/ /api/log/ /api/checkpoints/ /api/contents/ /api/media/ / "
    "/api/curves?name=loss&run= /api/compare?run=first&run= /api/csv?run= /api/sweep?folder= "
    "/api/events?run= /api/live?cursor=x&run="
)


def generated_paths() -> list[str]:
    """Addresses that a bad client would try: 150 of them, the same in every run of the tests."""
    random.seed(12)
    steps, ends, heads = (text.split() for text in (STEPS, ENDS, HEADS))
    found = []
    for _ in range(130):
        middle = "/".join(random.choice(steps) for _ in range(random.randint(1, 5)))
        found.append(random.choice(heads) + middle + "/" + random.choice(ends))
    numbers = ["nan", "inf", "-1", "1e400", "x", "0", "99999999999999999999", "", "%00"]
    found += [f"/api/curves?run=first&name=loss&points={number}" for number in numbers]
    found += [f"/api/curves?run=first&name=loss&first={number}&last={number}" for number in numbers]
    found += [
        f"/api/curves?run=first&name=loss&x={x}"
        for x in ("step;drop", "'", "%00", "none", "x" * 5000)
    ]
    found += [
        f"/api/curves?run=first&name={name}"
        for name in ("'", '"', "%00", "%ff", "x" * 5000, "%27;--")
    ]
    found += [f"/api/media/first/{number}" for number in (0, -1, 10**30, "1.5", "x", "1/2")]
    found += [f"/api/log/first?last={number}" for number in numbers]
    cursors = ("1.2", "x", "9" * 400, "-1.0.0.0.0.0")
    found += [f"/api/live?run=first&cursor={cursor}" for cursor in cursors]
    found += [f"/api/live?{'run=first%2Fa&' * 300}", "/api/curves", "/api/compare", "/api/csv"]
    return [path.replace("\\", "%5c") for path in found]


def test_bad_addresses_are_refused_with_a_sentence_and_show_nothing(tmp_path: Path):
    root = secret_folder(tmp_path)
    with serving(root) as served:
        replies = {
            path: served.get(path)
            for path in generated_paths()
            if "live" not in path or "first" in path
        }
        assert len(replies) > 100
        bad = {path: reply.status for path, reply in replies.items() if reply.status >= 500}
        assert bad == {}
        for path, reply in replies.items():
            assert SECRET.encode() not in reply.body, path
            assert b"root:" not in reply.body, path
            if reply.status in (400, 404) and reply.headers["content-type"] == "application/json":
                assert json.loads(reply.body)["error"].endswith((".", "loss", "step")), (
                    path,
                    reply.body,
                )
        assert served.get("/api/runs").status == 200
