"""The examples of the guides on codecs, privacy and polling run as the pages say."""

from __future__ import annotations

import importlib
import json
import re
import zlib
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import serializers
from django.core.checks import run_checks
from django.db import connection
from django.test import Client, override_settings

from django_pgqueue import CannotDecode
from django_pgqueue.encoding import codecs
from django_pgqueue.encoding.serialization import encode_result
from django_pgqueue.ground.envelope import codec_of
from django_pgqueue.models import Execution, Job
from django_pgqueue.settings import conf
from django_pgqueue.testing import run_jobs
from tests.app import tasks
from tests.documents import PAGES, blocks, loose_blocks
from tests.test_docs_examples import shop as shop

SECRET = "hunter2-correct-horse"
CODECS, POLLING = "docs/guides/codecs.md", "docs/guides/polling.md"


def texts() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT arguments::text, result::text FROM pgqueue_job ORDER BY id")
        return [text for row in cursor.fetchall() for text in row if text is not None]


def settings_of_page() -> list[dict[str, Any]]:
    """Return the settings in the loose blocks of the page, in their order."""
    found = []
    for block in loose_blocks(CODECS):
        names: dict[str, Any] = {}
        exec(compile(block, CODECS, "exec"), names)  # noqa: S102 -- our own text
        found.append(names["PGQUEUE"])
    return found


def test_settings_of_the_codecs_page_are_valid(shop):
    pytest.importorskip("cryptography", reason="the example of the guide needs it")
    fernet = pytest.importorskip("cryptography.fernet")
    found = settings_of_page()
    assert len(found) == 3
    for given in found:
        assert conf.problems(given) == []
        with override_settings(PGQUEUE=given, QUEUE_KEYS=[fernet.Fernet.generate_key()]):
            assert not {"pgqueue.E001", "pgqueue.E010"} & {message.id for message in run_checks()}


def test_fernet_example_encrypts_and_changes_its_key(shop):
    fernet = pytest.importorskip("cryptography.fernet", reason="the example of the guide needs it")
    old, new = fernet.Fernet.generate_key(), fernet.Fernet.generate_key()
    [encrypted, _, removed] = settings_of_page()
    for number, keys in enumerate([[old], [old, new], [new, old]]):
        with override_settings(PGQUEUE=encrypted, QUEUE_KEYS=keys):
            tasks.use_token.enqueue(f"{SECRET} {number}")
    assert SECRET not in "".join(texts()) and {codec_of(text) for text in texts()} == {"fernet"}
    with override_settings(PGQUEUE=encrypted, QUEUE_KEYS=[new]):
        codecs.project_codecs.cache_clear()  # as in another process
        run_jobs()
        assert list(Job.objects.order_by("pk").values_list("state", flat=True)) == ["ready", "ready", "succeeded"]
    Job.objects.filter(state="ready").run_now()
    with override_settings(PGQUEUE=removed, QUEUE_KEYS=[new, old]):
        assert run_jobs(raising=True) == 2
        assert list(Job.objects.order_by("pk").values_list("result", flat=True)) == [
            f"{SECRET} {number} of 0" for number in range(3)
        ]
    assert not Execution.objects.exclude(error="").filter(error__contains="gAAAA").exists()


def test_fernet_example_refuses_a_changed_value(shop):
    fernet = pytest.importorskip("cryptography.fernet", reason="the example of the guide needs it")
    with override_settings(PGQUEUE=settings_of_page()[0], QUEUE_KEYS=[fernet.Fernet.generate_key()]):
        envelope = json.loads(encode_result(SECRET))
        assert codecs.decode(envelope) == SECRET
        assert len(envelope["data"]) < 2.3 * len(fernet.Fernet.generate_key()) + 4 * len(SECRET)
        envelope["data"] = envelope["data"][:-8] + "AAAAAAA="
        with pytest.raises(CannotDecode, match="the codec 'fernet' cannot decode the value: it raised InvalidToken"):
            codecs.decode(envelope)


def test_zlib_example_compresses_and_bounds_memory(shop):
    codec = importlib.import_module("shop.compression").Compressed()
    large = json.dumps(["x" * 50] * 1000).encode()
    packed = codec.encode(large)
    assert packed is not None and len(packed) < len(large) / 20 and codec.decode(packed) == large
    assert codec.encode(b'{"args":[1],"kwargs":{}}') is None
    bomb = zlib.compress(b"0" * 50_000_000)
    assert len(bomb) < 60_000
    for wrong in (bomb, packed[:-5]):
        with pytest.raises(ValueError, match="too large or incomplete"):
            codec.decode(wrong)
    with override_settings(PGQUEUE={"CODECS": ["shop.compression.Compressed"]}):
        tasks.plus.enqueue("x" * 60_000, "!")
        assert len("".join(texts())) < 1000
        assert run_jobs(raising=True) == 1


@pytest.mark.django_db
def test_dumpdata_writes_decoded_values():
    with override_settings(PGQUEUE={"CODECS": ["tests.app.codecs.Hidden"]}):
        tasks.plus.enqueue(SECRET, "!")
        assert SECRET in serializers.serialize("json", Job.objects.all())
    with pytest.raises(TypeError, match="EncodedValue is not JSON serializable"):
        serializers.serialize("json", Job.objects.all())


def test_privacy_example_error_omits_the_sensitive_value(shop):
    names = importlib.import_module("shop.tasks")
    names.invite.using(max_attempts=1).enqueue("ada@example.com")
    assert names.import_orders.sensitive == {"api_key"}
    run_jobs()
    execution = Execution.objects.get()
    assert execution.error == "there is no order with this address"
    assert "ada@example.com" not in execution.traceback and "Order matching" not in execution.traceback


@pytest.mark.django_db
def test_errors_reveal_arguments_as_the_privacy_page_says():
    tasks.fail.using(max_attempts=1).enqueue(SECRET)
    run_jobs()
    assert SECRET in Execution.objects.get().error


def test_polling_example_shows_the_job_to_its_user_only(shop):
    ada, eve = Client(), Client()
    for client, name in ((ada, "ada"), (eve, "eve")):
        client.force_login(User.objects.create_user(name))
    with override_settings(ROOT_URLCONF="shop.urls"):
        token = ada.get("/reports/").json()["token"]
        assert eve.get(f"/jobs/{token}/").status_code == 404
        run_jobs(raising=True)
        job = ada.get(f"/jobs/{token}/").json()
    assert job == {"state": "succeeded", "is_finished": True, "progress": None, "result": 0}


def test_polling_script_uses_keys_that_the_view_returns():
    [script] = blocks(POLLING, "javascript")
    used = set(re.findall(r"\bjob\.(\w+)", script)) | set(re.findall(r"\bjob\.progress\.(\w+)", script))
    assert used == {"progress", "is_finished", "fraction", "message"}
    keys = set(re.findall(r"^\| `(\w+)` \|", PAGES[POLLING].partition("## The answer")[2].partition("\n## ")[0], re.M))
    assert keys == {"state", "is_finished", "progress", "result"}
