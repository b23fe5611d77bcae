"""`bin/setup` in copies of the checkout, with a fake uv that makes empty environments and lists its installs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[1]
TOOLS = ["cat", "cksum", "dirname", "grep", "id", "mkdir", "rm", "sh", "sleep"]
FAKE_UV = f"""#!/bin/sh
case $1 in
venv) sleep 0.2; exec "{sys.executable}" -m venv --without-pip .venv ;;
pip) shift 5; echo "$*" >>installs; [ ! -e no-network ] ;;
esac
"""


class Checkout:
    """A copy of the files that `bin/setup` needs, and a PATH with only the programs that it needs."""

    def __init__(self, root: Path) -> None:
        self.path = root / "a checkout"
        self.programs = root / "programs"
        self.programs.mkdir()
        (self.path / "bin").mkdir(parents=True)
        shutil.copy(CHECKOUT / "bin/setup", self.path / "bin/setup")
        shutil.copy(CHECKOUT / "pyproject.toml", self.path)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found
            (self.programs / tool).symlink_to(found)

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.path / "bin/setup", *arguments],
            cwd="/",
            env={"PATH": str(self.programs)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def setup(self, *arguments: str) -> tuple[int, str]:
        with self.start(*arguments) as process:
            output, _ = process.communicate(timeout=60)
        return process.returncode, output

    @property
    def installs(self) -> list[str]:
        return (self.path / "installs").read_text().splitlines()


@pytest.fixture
def bare(tmp_path):
    """Return a checkout on a machine without Python and uv."""
    return Checkout(tmp_path)


@pytest.fixture
def checkout(bare):
    """Return a checkout on a machine with uv, and with a python3 for the queries of `bin/setup`."""
    bare.program("uv", FAKE_UV)
    bare.program("python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    return bare


def test_setup_without_python_is_refused(bare):
    code, output = bare.setup()
    assert code == 1
    assert output == "bin/setup: needs Python 3.11 or later as python3, or uv; this machine has no python3\n"


def test_setup_old_python_is_named(bare):
    bare.program("python3", '#!/bin/sh\n[ "$1" = -V ] && echo Python 3.10.2\n')
    code, output = bare.setup()
    assert code == 1
    assert output.endswith("this machine has Python 3.10.2\n")


def test_setup_without_installer_names_packages_to_install(bare):
    bare.program("python3", '#!/bin/sh\ncase "$*" in *ensurepip* | *pip*) exit 1 ;; esac\n')
    code, output = bare.setup()
    assert code == 1
    assert "install one (Debian: apt install python3-venv) or uv" in output
    assert not (bare.path / ".venv").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_setup_read_only_checkout_is_refused(checkout):
    checkout.path.chmod(0o555)
    code, output = checkout.setup()
    checkout.path.chmod(0o755)
    assert code == 1
    assert "is not writable" in output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
def test_setup_environment_of_another_user_is_refused(checkout):
    (checkout.path / ".venv").mkdir()
    os.chown(checkout.path / ".venv", 65534, 65534)
    code, output = checkout.setup()
    assert code == 1
    assert "belongs to another user" in output


@pytest.mark.quick
def test_setup_second_run_does_nothing(checkout):
    code, output = checkout.setup()
    assert code == 0
    assert output == f"bin/setup: installing into {checkout.path}/.venv (test)\n"
    assert checkout.setup() == (0, "")
    assert checkout.installs == ["--editable .[test]"]


def test_setup_dev_includes_test(checkout):
    assert checkout.setup("dev")[0] == 0
    assert checkout.setup() == (0, "")
    assert checkout.setup("dev") == (0, "")
    assert checkout.installs == ["--editable .[test] --group dev"]


def test_setup_changed_dependencies_are_installed(checkout):
    checkout.setup()
    with (checkout.path / "pyproject.toml").open("a") as project:
        project.write("# changed\n")
    assert checkout.setup()[0] == 0
    assert len(checkout.installs) == 2


def test_setup_after_interrupted_install_recreates_venv(checkout):
    (checkout.path / "no-network").touch()
    assert checkout.setup()[0] == 1
    leftover = checkout.path / ".venv/leftover"
    leftover.touch()
    (checkout.path / "no-network").unlink()
    assert checkout.setup()[0] == 0
    assert checkout.setup() == (0, "")
    assert not leftover.exists()


def test_setup_environment_made_by_uv_is_kept(checkout):
    subprocess.run([checkout.programs / "uv", "venv"], cwd=checkout.path, check=True)
    kept = checkout.path / ".venv/kept"
    kept.touch()
    assert checkout.setup()[0] == 0
    assert kept.exists()


def test_setup_moved_checkout_recreates_venv(checkout):
    checkout.setup()
    (checkout.path / ".venv/stale").touch()
    checkout.path = checkout.path.rename(checkout.path.with_name("elsewhere"))
    assert checkout.setup()[0] == 0
    assert not (checkout.path / ".venv/stale").exists()


def test_setup_concurrent_runs_install_once(checkout):
    with checkout.start() as first, checkout.start() as second:
        outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert sorted(map(bool, outputs)) == [False, True]
    assert len(checkout.installs) == 1
