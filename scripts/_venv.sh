# Sourced by the other scripts: makes the virtual environment and installs Heddle into it, once.
#
# HEDDLE_VENV names another place than .venv; PYTHON another interpreter than the first suitable one.
# A stamp (the sum of pyproject.toml) tells that nothing has to be installed: then no network is needed.

venv=${HEDDLE_VENV:-$PWD/.venv}

say() { printf '==> %s\n' "$*" >&2; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Whether $1 is an interpreter that Heddle runs on and that can make virtual environments.
suitable_python() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3 python; do
        if suitable_python "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "no Python 3.11 or newer with venv found; install one (Debian: apt-get install python3 python3-venv), or name it: PYTHON=/path/to/python $0"
}

make_venv() {
    local python
    if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python)
    say "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
}

# install_heddle EXTRAS: an editable install with these extras, unless one that begins alike is there.
install_heddle() {
    local extras=$1 sum stamp
    make_venv
    sum=$("$venv/bin/python" -c 'import hashlib, sys; print(hashlib.sha256(open("pyproject.toml", "rb").read() + sys.version.encode()).hexdigest())')
    for stamp in "$venv/.heddle-$extras"*; do
        if [[ -f $stamp && $(<"$stamp") == "$sum" ]]; then
            return
        fi
    done
    say "installing Heddle [$extras] into $venv (a minute or two, this time only)"
    rm -f "$venv"/.heddle-*
    "$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
        --root-user-action=ignore --editable ".[$extras]"
    printf '%s\n' "$sum" >"$venv/.heddle-$extras"
}
