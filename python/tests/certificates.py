"""Certificates for tests: an authority of their own, and a server's certificate of it."""

import subprocess

SCRIPT = """
set -e
new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
openssl req -x509 $new -days 2 -subj '/CN=Cairn test authority' -keyout ca.key -out ca.crt
openssl req $new -subj /CN=cairn.test -keyout server.key -out server.csr
echo subjectAltName=DNS:cairn.test,DNS:localhost,IP:127.0.0.1 >names
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt
"""


def make_certificates(directory):
    """ca.crt, server.crt (127.0.0.1, localhost, cairn.test) and server.key in `directory`."""
    directory.mkdir(parents=True)
    subprocess.run(["sh", "-c", SCRIPT], cwd=directory, check=True, capture_output=True)
    return directory
