"""Which addresses and hosts are public."""

import pytest

from fsm_provider.api import FsmPdfUrlError
from fsm_provider.api.adapter import require_public_host, require_public_ip

INNER = [
    *("10.1.2.3", "172.16.0.1", "192.168.0.1", "127.0.0.1", "169.254.169.254", "0.0.0.0", "0.1.2.3"),
    *("100.64.0.1", "100.127.255.255", "192.0.0.8", "192.0.0.9", "192.0.0.255", "192.88.99.1"),
    *("198.18.0.1", "192.0.2.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1%eth0", "fd00:ec2::254", "ff0e::1", "fec0::1", "feff::1", "100::1", "5f00::1"),
    *("::127.0.0.1", "::ffff:127.0.0.1", "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "64:ff9b:1:ffff::8.8.8.8", "2002:a00:1::", "2002:7f00:1::1"),
    *("2001::1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "2001:2::1", "2001:db8::1", "3fff::1"),
]
PUBLIC = ["93.184.215.14", "2606:2800:21f:cb07::1", "::ffff:93.184.215.14", "64:ff9b::5db8:d70e"]


@pytest.mark.parametrize("address", INNER)
def test_a_private_address_is_refused(address):
    for refuse in (require_public_ip, require_public_host):
        with pytest.raises(FsmPdfUrlError, match="is not a public address: set allow_private_addresses"):
            refuse(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_passes(address):
    require_public_ip(address)
    require_public_host(address)


@pytest.mark.parametrize(
    "host",
    ["files.example.com", "Files.Example.COM.", "a_b.s3.eu-west-1.amazonaws.com", "xn--bcher-kva.ch", "1.de"],
)
def test_a_public_name_passes(host):
    require_public_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "2130706433",
            "0x7f000001",
            "0X7F.1",
            "127.1",
            "0177.0.0.1",
            "010.0.0.1",
            "127.0.0.1..",
            "0",
            "1.2.3.4.5",
        ),
        *(
            "localhost",
            "localhost.",
            "a.LOCALHOST.",
            "localhost.localdomain",
            "printer.local",
            "router.lan",
            "a.corp",
            "api.svc",
            "fsm",
        ),
        *(
            "metadata.google.internal",
            "nas.home.arpa",
            "127.0.0.1%2e",
            "a b.example.com",
            "a..example.com",
            ".",
        ),
        *("2606:2800:21f:cb07::1%eth0", "files.0x7f"),
    ],
)
def test_private_names_and_unusual_ip_spellings_are_refused(host):
    with pytest.raises(FsmPdfUrlError, match="is not a public address"):
        require_public_host(host)
