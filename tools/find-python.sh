#!/bin/sh
# Prints a Python that can run Lakewright (3.11 or newer, with venv), or says what to install.
# PYTHON, when it is set, is the only candidate.

suits() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
    if suits "$candidate"; then
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            command -v "$candidate"
            exit 0
        fi
        without_venv="$candidate"
    fi
done

if [ -n "${without_venv:-}" ]; then
    cat >&2 <<END
error: $without_venv has no venv module, which make needs. Install it, then repeat the command:
  Debian, Ubuntu:  sudo apt install python3-venv
END
    exit 1
fi

cat >&2 <<END
error: Lakewright needs Python 3.11 or newer${PYTHON:+, and PYTHON=$PYTHON is not}. Install it, then repeat the command:
  Debian, Ubuntu:  sudo apt install python3 python3-venv
  macOS:           brew install python@3.12
  Fedora:          sudo dnf install python3
If it is installed under another name: make PYTHON=/path/to/python ...
END
exit 1
