"""Our signatures of requests are those of botocore, for requests that nobody chose by hand."""

import datetime
import json
import random
import string
import subprocess
from unittest import mock
from urllib.parse import quote

import botocore.auth
import botocore.awsrequest
import botocore.credentials
from children import command_line


def _program():
    return command_line().removesuffix("cairn") + "s3_sign"


def _random_request(rng):
    alphabet = string.ascii_letters + string.digits + "-._~ /+&=?#%$!*'();:@,[]äü日🙂"
    word = lambda n: "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, n)))  # noqa: E731
    query = {word(8): rng.choice(["", word(12)]) for _ in range(rng.randrange(4))}
    headers = {
        f"x-amz-meta-{i}": " ".join(["v" * rng.randrange(1, 5)] * 2)
        for i in range(rng.randrange(3))
    }
    return {
        "method": rng.choice(["GET", "PUT", "POST", "DELETE", "HEAD"]),
        "path": "/" + quote(word(30), safe="/-._~"),
        "query": sorted(query.items()),
        "headers": headers,
        "payload": rng.choice(["UNSIGNED-PAYLOAD", "0" * 64]),
        "token": rng.choice(["", "session/token+="]),
        "region": rng.choice(["us-east-1", "eu-central-1"]),
        "time": rng.randrange(1_000_000_000, 2_000_000_000),
    }


def _botocore(request):
    moment = datetime.datetime.fromtimestamp(request["time"], datetime.timezone.utc)
    query = "&".join(
        f"{quote(k, safe='-._~')}={quote(v, safe='-._~')}" for k, v in request["query"]
    )
    aws = botocore.awsrequest.AWSRequest(
        request["method"],
        "http://bucket.example.org" + request["path"] + ("?" + query if query else ""),
        headers={**request["headers"], "X-Amz-Content-SHA256": request["payload"]},
    )
    keys = botocore.credentials.Credentials("AKID", "secret/key+", request["token"] or None)
    auth = botocore.auth.S3SigV4Auth(keys, "s3", request["region"])
    with mock.patch.object(auth, "payload", lambda _: request["payload"]):
        # The date is botocore's own choice; it has moved between versions of the library.
        for target in ("get_current_datetime", "datetime"):
            if hasattr(botocore.auth, target):
                break
        if target == "get_current_datetime":
            patch = mock.patch(
                "botocore.auth.get_current_datetime", lambda *_: moment.replace(tzinfo=None)
            )
        else:
            frozen = mock.Mock(wraps=datetime.datetime)
            frozen.utcnow.return_value = moment.replace(tzinfo=None)
            patch = mock.patch("botocore.auth.datetime.datetime", frozen)
        with patch:
            auth.add_auth(aws)
    return aws.headers["Authorization"]


def test_signatures_are_those_of_botocore():
    rng = random.Random(20261116)
    requests = [_random_request(rng) for _ in range(500)]
    done = subprocess.run(
        [_program()], input="\n".join(map(json.dumps, requests)), capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    ours = done.stdout.splitlines()
    assert len(ours) == len(requests)
    for request, signature in zip(requests, ours):
        assert signature == _botocore(request), request
