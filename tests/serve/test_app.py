"""The routes: what they answer, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from headstart.errors import ConfigError
from headstart.serve.app import create_app
from headstart.serve.limits import Limits
from headstart.serve.models import ServedClassifier, ServedLanguageModel
from headstart.serve.state import ServerState
from headstart.use.classifier import TextClassifier
from headstart.use.explain import explain
from headstart.use.generate import Sampling, generate
from headstart.version import __version__
from tests.serve.example_models import in_a_thread

JSON = {"Content-Type": "application/json"}


def error(answer: Response) -> tuple[int, str, str | None]:
    """Status, code and field of a refusal, which has its one form."""
    said = answer.json()["error"]
    assert said["message"] and set(said) <= {"code", "message", "field"}
    return answer.status_code, said["code"], said.get("field")


def close(found: dict[str, float], expected: Any) -> bool:
    return found.keys() == expected.keys() and all(abs(found[k] - expected[k]) <= 1e-6 for k in found)


class TestPredict:
    def test_as_offline(self, client: TestClient, offline: TextClassifier, texts: list[str]) -> None:
        answer = client.post("/predict", json={"texts": texts})
        assert answer.status_code == 200
        assert answer.json()["model"] == "reviews"
        for said, expected in zip(answer.json()["predictions"], offline.predict(texts), strict=True):
            assert said.keys() == {"label", "probabilities"}
            assert said["label"] == expected.label
            assert close(said["probabilities"], expected.probabilities)

    def test_one_text(self, client: TestClient) -> None:
        (said,) = client.post("/predict", json={"text": "a witty and tender tale"}).json()["predictions"]
        assert said["label"] == "pos"
        assert sum(said["probabilities"].values()) == pytest.approx(1)

    def test_pairs_beside_texts(self, client: TestClient, offline: TextClassifier) -> None:
        asked: list[Any] = [["a dull page", "the witty reader"], "a dull page", ["a witty tale", ""]]
        expected = offline.predict([("a dull page", "the witty reader"), "a dull page", ("a witty tale", "")])
        said = client.post("/predict", json={"texts": asked}).json()["predictions"]
        assert all(close(s["probabilities"], e.probabilities) for s, e in zip(said, expected, strict=True))

    def test_abstaining(self, client: TestClient) -> None:
        words = {"text": "the page"}
        (sure,) = client.post("/predict", json={**words, "abstain_below": 0}).json()["predictions"]
        (unsure,) = client.post("/predict", json={**words, "abstain_below": 1}).json()["predictions"]
        assert sure["label"] in ("neg", "pos") and unsure["label"] is None
        assert sure["probabilities"] == unsure["probabilities"]

    def test_another_model_by_name(self, client: TestClient) -> None:
        answer = client.post("/predict", json={"text": "a witty tale", "model": "topics"}).json()
        assert answer["model"] == "topics"
        assert list(answer["predictions"][0]["probabilities"]) == ["art", "law", "sea"]

    def test_an_empty_text_is_a_text(self, client: TestClient, offline: TextClassifier) -> None:
        (said,) = client.post("/predict", json={"text": ""}).json()["predictions"]
        assert close(said["probabilities"], offline.predict([""])[0].probabilities)

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ({}, (422, "no_text", "texts")),
            ({"text": "a", "texts": ["a"]}, (422, "no_text", "texts")),
            ({"texts": []}, (422, "unfit", "texts")),
            ({"texts": "a"}, (422, "unfit", "texts")),
            ({"texts": None}, (422, "unfit", "texts")),
            ({"texts": ["a", 3]}, (422, "unfit", "texts[1]")),
            ({"texts": ["a", ["a"]]}, (422, "unfit", "texts[1]")),
            ({"texts": ["a", ["a", 3]]}, (422, "unfit", "texts[1][1]")),
            ({"text": {"a": "b"}}, (422, "unfit", "text")),
            ({"txt": "a"}, (422, "unknown_field", "txt")),
            ({"text": "a", "model": "reviewz"}, (404, "no_model", "model")),
            ({"text": "a", "model": "writer"}, (404, "no_model", "model")),
            ({"text": "a", "model": 3}, (422, "unfit", "model")),
            ({"text": "a", "abstain_below": 1.5}, (422, "unfit", "abstain_below")),
            ({"text": "a", "abstain_below": True}, (422, "unfit", "abstain_below")),
            ([], (422, "not_an_object", "")),
        ],
    )
    def test_refusals(self, client: TestClient, body: Any, expected: tuple[int, str, str]) -> None:
        assert error(client.post("/predict", json=body)) == expected

    @pytest.mark.parametrize("body", [b"", b"{", b'{"text": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"text": "\n"}'])
    def test_what_is_no_json(self, client: TestClient, body: bytes) -> None:
        assert error(client.post("/predict", content=body, headers=JSON)) == (400, "bad_json", None)

    def test_half_a_surrogate_pair(self, client: TestClient) -> None:
        body = b'{"texts": ["a witty tale", "\\ud83d"]}'
        assert error(client.post("/predict", content=body, headers=JSON)) == (422, "unreadable_text", "texts[1]")
        answer = client.post("/predict", content=b'{"\\ud800": 1}', headers=JSON)
        assert error(answer) == (422, "unknown_field", "\\ud800")  # spelled out

    def test_a_body_that_is_not_said_to_be_json(self, client: TestClient) -> None:
        """A form on some other site could send it, in the name of who looks at that site."""
        for headers in ({"Content-Type": "text/plain"}, {"Content-Type": ""}):
            answer = client.post("/predict", content=b'{"text": "a"}', headers=headers)
            assert error(answer) == (415, "not_json", None)

    def test_the_message_says_what_was_found(self, client: TestClient) -> None:
        answer = client.post("/predict", json={"text": "a", "model": "reviewz"})
        assert answer.json()["error"]["message"] == "no classifier is called 'reviewz': did you mean 'reviews'?"


class TestLimits:
    def test_texts_and_characters(self, served: ServedClassifier) -> None:
        with TestClient(create_app([served], Limits(texts=2, characters=5))) as client:
            assert client.post("/predict", json={"texts": ["a", "abcde"]}).status_code == 200
            assert error(client.post("/predict", json={"texts": ["a"] * 3})) == (422, "too_many_texts", "texts")
            assert error(client.post("/predict", json={"texts": ["a", "abcdef"]})) == (422, "text_too_long", "texts[1]")
            assert error(client.post("/explain", json={"text": ["a", "abcdef"]})) == (422, "text_too_long", "text[1]")

    def test_the_body(self, served: ServedClassifier) -> None:
        whole = json.dumps({"text": "a witty tale"}).encode()
        with TestClient(create_app([served], Limits(body=len(whole)))) as client:
            assert client.post("/predict", content=whole, headers=JSON).status_code == 200
            assert error(client.post("/predict", content=whole + b" ", headers=JSON)) == (413, "body_too_long", None)
            parts = iter([whole, b" "])  # sent in chunks, without saying how much there is
            assert error(client.post("/predict", content=parts, headers=JSON)) == (413, "body_too_long", None)

    def test_limits_are_in_the_info(self, served: ServedClassifier) -> None:
        with TestClient(create_app([served], Limits(texts=7))) as client:
            assert client.get("/info").json()["limits"]["texts"] == 7

    def test_limits_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="texts is 0, and must be at least 1"):
            Limits(texts=0)


class TestExplain:
    def test_as_offline(self, client: TestClient, offline: TextClassifier) -> None:
        text = "the witty tale of a dull page"
        answer = client.post("/explain", json={"text": text})
        assert answer.status_code == 200
        said, expected = answer.json(), explain(offline, text).to_json()
        assert said.pop("model") == "reviews"
        assert said["faithfulness"] == pytest.approx(expected["faithfulness"], abs=1e-3)
        weights = [word.pop("weight") for word in said["words"]]
        assert weights == pytest.approx([word.pop("weight") for word in expected["words"]], abs=1e-3)
        assert said["words"] == expected["words"]
        for word in said["words"]:
            assert text[word["start"] : word["end"]] == word["text"]

    def test_without_the_test(self, client: TestClient) -> None:
        said = client.post("/explain", json={"text": "a witty tale", "faithfulness": False}).json()
        assert said["faithfulness"] is None and said["completeness"]["logit"] > said["completeness"]["baseline"]

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ({}, (422, "missing", "text")),
            ({"texts": ["a"]}, (422, "unknown_field", "texts")),
            ({"text": "a", "faithfulness": 1}, (422, "unfit", "faithfulness")),
            ({"text": "a", "model": "writer"}, (404, "no_model", "model")),
        ],
    )
    def test_refusals(self, client: TestClient, body: Any, expected: tuple[int, str, str]) -> None:
        assert error(client.post("/explain", json=body)) == expected


class TestContinue:
    def test_as_offline(self, client: TestClient, writer: ServedLanguageModel) -> None:
        asked = {"text": "the tender", "max_tokens": 12, "temperature": 0.8, "seed": 3}
        expected = generate(
            writer.language_model.model,
            writer.language_model.tokenizer,
            "the tender",
            Sampling(max_tokens=12, temperature=0.8, seed=3),
        )
        answer = client.post("/continue", json=asked)
        assert answer.json() == {"model": "writer", "text": expected.text, "stopped": expected.stopped}

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"max_tokens": 0}, (422, "unfit", "max_tokens")),
            ({"max_tokens": 201}, (422, "unfit", "max_tokens")),
            ({"max_tokens": 2.5}, (422, "unfit", "max_tokens")),
            ({"temperature": -1}, (422, "unfit", "temperature")),
            ({"seed": -1}, (422, "unfit", "seed")),
            ({"text": ["a", "b"]}, (422, "unfit", "text")),
            ({"model": "reviews"}, (404, "no_model", "model")),
        ],
    )
    def test_refusals(self, client: TestClient, change: Any, expected: tuple[int, str, str]) -> None:
        assert error(client.post("/continue", json={"text": "the", **change})) == expected

    def test_numbers_beyond_all_floats(self, client: TestClient) -> None:
        answer = client.post("/continue", content=b'{"text": "the", "max_tokens": 1e999}', headers=JSON)
        assert error(answer) == (422, "unfit", "max_tokens")

    def test_where_no_model_can(self, served: ServedClassifier) -> None:
        with TestClient(create_app([served])) as client:
            assert error(client.post("/continue", json={"text": "a"})) == (404, "no_model", None)
            assert "/continue" not in client.get("/openapi.json").json()["paths"]


class TestTheRest:
    def test_info(self, client: TestClient, folders: dict[str, Path]) -> None:
        said = client.get("/info").json()
        assert said["version"] == __version__
        assert [(m["name"], m["kind"], m["labels"], m["window"]) for m in said["models"]] == [
            ("reviews", "classifier", ["neg", "pos"], 32),
            ("topics", "classifier", ["art", "law", "sea"], 32),
            ("writer", "language model", [], 32),
        ]
        # by hand: 160 x 32 embeddings; two layers of 96x32 + 32x32 + 96x32 + 32x48 + 2x32; two norms; the head
        assert said["models"][0]["parameters"] == 160 * 32 + 2 * (3072 + 1024 + 3072 + 1536 + 64) + 64 + 66

    def test_no_answer_has_a_path(self, client: TestClient, folders: dict[str, Path]) -> None:
        places = [str(folders["reviews"].parent), str(Path.home()), "site-packages", "/src/"]
        answers = [client.get(path) for path in ("/info", "/health", "/metrics", "/docs", "/openapi.json", "/x", "/")]
        answers += [client.post(path, json={}) for path in ("/predict", "/explain", "/continue")]
        for answer in answers:
            assert not any(place in answer.text for place in places), answer.url

    def test_health(self, client: TestClient) -> None:
        assert client.get("/health").json() == {"status": "ok"}

    def test_unknown_places_and_methods(self, client: TestClient) -> None:
        assert error(client.get("/nowhere")) == (404, "not_found", None)
        assert error(client.get("/page/../app.py")) == (404, "not_found", None)
        wrong = client.get("/predict")
        assert error(wrong) == (405, "wrong_method", None)
        assert wrong.headers["Allow"] == "POST"
        assert error(client.delete("/info"))[0] == 405

    def test_security_headers_on_every_answer(self, client: TestClient) -> None:
        for path in ("/", "/app.js", "/info", "/nowhere"):
            headers = client.get(path).headers
            policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
            assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert "Access-Control-Allow-Origin" not in headers

    def test_two_models_of_one_name(self, served: ServedClassifier) -> None:
        with pytest.raises(ConfigError, match="'reviews' is given twice"):
            create_app([served, served])
        with pytest.raises(ConfigError, match="no model"):
            create_app([])

    def test_a_failure_is_told_without_its_details(
        self, served: ServedClassifier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(*_: Any) -> Any:
            raise RuntimeError("out of memory at /secret/place")

        monkeypatch.setattr(ServedClassifier, "probabilities", broken)
        with TestClient(create_app([served])) as client:
            answer = client.post("/predict", json={"text": "a"})
            assert error(answer) == (500, "internal", None)
            assert "secret" not in answer.text and "secret" in caplog.text
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert 'headstart_requests_total{route="/predict",status="500"} 1' in client.get("/metrics").text


class TestHost:
    """On loopback without a token, a page of another site must not reach the service by a name of its own."""

    @pytest.fixture
    def local(self, served: ServedClassifier) -> TestClient:
        return TestClient(create_app([served], state=ServerState(loopback=True)))

    @pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:8000", "127.8.8.8", "[::1]:8000"])
    def test_loopback(self, local: TestClient, host: str) -> None:
        assert local.get("/info", headers={"Host": host}).status_code == 200
        assert local.post("/predict", json={"text": "a"}, headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize("host", ["rebound.example:8000", "127.0.0.1.rebound.example", "0.0.0.0:8000", "", "[::2]"])
    def test_another_name(self, local: TestClient, host: str) -> None:
        for path in ("/", "/info", "/docs", "/openapi.json", "/metrics", "/nowhere"):
            assert error(local.get(path, headers={"Host": host})) == (421, "wrong_host", None)
        answer = local.post("/predict", json={"text": "a"}, headers={"Host": host})
        assert error(answer) == (421, "wrong_host", None)
        assert local.get("/health", headers={"Host": host}).status_code == 200  # for monitors; it says nothing else

    def test_a_token_or_a_network_is_no_matter_of_names(self, served: ServedClassifier) -> None:
        headers = {"Host": "models.example", "Authorization": "Bearer t"}
        for app in (create_app([served], token="t", state=ServerState(loopback=True)), create_app([served])):
            assert TestClient(app).get("/info", headers=headers).status_code == 200

    def test_the_server_knows_where_it_listens(self, served: ServedClassifier) -> None:
        with in_a_thread([served], Limits()) as (_, url):
            assert httpx.get(f"{url}/info").status_code == 200
            assert httpx.get(f"{url}/info", headers={"Host": "rebound.example"}).status_code == 421


class TestToken:
    @pytest.fixture
    def locked(self, served: ServedClassifier) -> TestClient:
        return TestClient(create_app([served], token="open sesame"))

    def test_the_right_one(self, locked: TestClient) -> None:
        for scheme in ("Bearer", "bearer"):
            headers = {"Authorization": f"{scheme} open sesame"}
            assert locked.post("/predict", json={"text": "a"}, headers=headers).status_code == 200

    @pytest.mark.parametrize("given", [None, "Bearer open", "Basic open sesame", "open sesame", "Bearer ", "Bearer é"])
    def test_a_wrong_one(self, locked: TestClient, given: str | None) -> None:
        headers: dict[bytes, bytes] = {} if given is None else {b"Authorization": given.encode("latin-1")}
        for answer in (
            locked.post("/predict", content=b"{", headers=headers),
            locked.get("/info", headers=headers),
            locked.get("/metrics", headers=headers),
        ):
            assert error(answer) == (401, "unauthorised", None)
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")

    def test_what_needs_none(self, locked: TestClient) -> None:
        for path in ("/", "/style.css", "/health", "/docs", "/openapi.json"):
            assert locked.get(path).status_code == 200

    def test_models_are_not_named_without_it(self, locked: TestClient, client: TestClient) -> None:
        for path in ("/", "/app.js", "/health", "/docs", "/openapi.json", "/nowhere"):
            assert "reviews" not in locked.get(path).text
        assert "reviews" in client.get("/openapi.json").text
        headers = {"Authorization": "Bearer open sesame"}
        for name, status in (("reviews", 200), (None, 200), ("topics", 404), (3, 422)):
            assert locked.post("/predict", json={"text": "a", "model": name}, headers=headers).status_code == status

    def test_the_description_says_so(self, locked: TestClient, client: TestClient) -> None:
        assert locked.get("/openapi.json").json()["paths"]["/predict"]["post"]["security"] == [{"token": []}]
        assert "security" not in client.get("/openapi.json").json()["paths"]["/predict"]["post"]
