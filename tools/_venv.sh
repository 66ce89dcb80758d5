# Sourced by tools/quickstart and tools/test: makes the project's virtual environment and puts it on PATH.
#
#   rhino_venv EXTRA    installs this repository in editable mode with [EXTRA,gpu-aot]; sets VENV
#
# PYTHON names the interpreter (default: python3). `python3` owns .venv; any other owns .venv-X.Y.
# A second run only compares two small stamps: one for the environment, one for what is installed in it.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
# Settings that would leak another installation into the environment.
unset PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf '[rhino] %s\n' "$*"; }
die() { printf '[rhino] error: %s\n' "$*" >&2; exit 1; }

# elapsed START_US -> "1.2 s", for a START_US taken with now_us.
now_us() { printf '%s' "${EPOCHREALTIME/[.,]/}"; }
elapsed() {
  local tenths=$((($(now_us) - $1) / 100000))
  printf '%d.%d s' $((tenths / 10)) $((tenths % 10))
}

# Sets INTERPRETER to a Python that runs, and PYTHON_VERSION to its X.Y.Z.
_find_python() {
  local asked=${PYTHON:-python3} version real
  INTERPRETER=$(command -v -- "$asked" || true)
  if ! { [ -n "$INTERPRETER" ] && "$INTERPRETER" --version >/dev/null 2>&1; }; then
    # A pyenv shim exists for every installed version but runs only the selected one: ask pyenv for the real path.
    INTERPRETER=
    if command -v pyenv >/dev/null 2>&1; then
      version=$(pyenv whence "$(basename -- "$asked")" 2>/dev/null | tail -n 1 || true)
      if [ -n "$version" ]; then
        INTERPRETER=$(PYENV_VERSION=$version pyenv which "$(basename -- "$asked")" 2>/dev/null || true)
      fi
    fi
  fi
  [ -n "$INTERPRETER" ] || die "'$asked' does not run; install Python 3.11, 3.12 or 3.13, or name one: PYTHON=/path/to/python"
  # The real path, so that the environment depends neither on a shim's selection nor on an activated environment.
  real=$("$INTERPRETER" -c 'import os, sys; print(os.path.realpath(sys.executable))' 2>/dev/null || true)
  [ -n "$real" ] || die "'$INTERPRETER' cannot run a one-line program; name another one: PYTHON=/path/to/python"
  INTERPRETER=$real
  PYTHON_VERSION=$("$INTERPRETER" -c 'import platform; print(platform.python_version())')
  "$INTERPRETER" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
    die "$INTERPRETER is Python $PYTHON_VERSION, and 3.11, 3.12 or 3.13 is needed; name another one: PYTHON=python3.12"
  "$INTERPRETER" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$INTERPRETER has no 'venv' module; install it (on Debian: apt-get install python${PYTHON_VERSION%.*}-venv)"
}

# _same FILE TEXT: whether FILE holds exactly TEXT.
_same() { [ -f "$1" ] && [ "$(cat -- "$1")" = "$2" ]; }

# _quietly COMMAND...: runs it; all its output is printed if it fails, and none otherwise.
_quietly() {
  local log=$VENV/rhino-install.log
  "$@" >"$log" 2>&1 || { cat -- "$log" >&2; return 1; }
}

_make_venv() {
  local start
  start=$(now_us)
  rm -rf -- "$VENV"
  say "making ${VENV#"$ROOT"/} with Python $PYTHON_VERSION ..."
  "$INTERPRETER" -m venv "$VENV" || die "'$INTERPRETER -m venv' failed; see above"
  printf '%s' "$1" >"$VENV/rhino-made"
  say "made in $(elapsed "$start")"
}

_install() {
  local start
  start=$(now_us)
  # Left behind when an installation is cut short: the next run then starts from an empty environment.
  : >"$VENV/rhino-installing"
  say "installing rhino[$1,gpu-aot]; this downloads about 400 MB unless pip has it in its cache ..."
  _quietly "$VENV/bin/python" -m pip install --quiet --progress-bar off -e "$ROOT[$1,gpu-aot]" ||
    die "pip could not install the packages (see above); run this again once that is repaired"
  printf '%s' "$2" >"$VENV/rhino-$1"
  rm -f -- "$VENV/rhino-installing"
  say "installed in $(elapsed "$start")"
}

rhino_venv() {
  local extra=$1 made stamp
  _find_python
  case ${PYTHON:-python3} in
    python3 | python) VENV=$ROOT/.venv ;;
    *) VENV=$ROOT/.venv-${PYTHON_VERSION%.*} ;;
  esac
  # Two runs at once must not install into one environment at the same time.
  if command -v flock >/dev/null 2>&1; then
    mkdir -p -- "$ROOT/out"
    exec 9>"$ROOT/out/$(basename -- "$VENV").lock"
    flock -n 9 || { say "waiting for another run that is installing into ${VENV#"$ROOT"/}"; flock 9; }
  fi
  # An environment is usable only where it was made (its scripts hold absolute paths) and by the Python that made it.
  made="$PYTHON_VERSION $INTERPRETER $ROOT"
  stamp=$({ cat -- "$ROOT/pyproject.toml" "$ROOT/tools/_venv.sh"; printf '%s' "$made"; } | "$INTERPRETER" -c \
    'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
  if ! _same "$VENV/rhino-made" "$made" || [ -e "$VENV/rhino-installing" ] ||
    ! "$VENV/bin/python" -c 'import pip' >/dev/null 2>&1; then
    _make_venv "$made"
  fi
  _same "$VENV/rhino-$extra" "$stamp" || _install "$extra" "$stamp"
  if command -v flock >/dev/null 2>&1; then exec 9>&-; fi
  export PATH="$VENV/bin:$PATH" VIRTUAL_ENV="$VENV"
  say "Python $PYTHON_VERSION, jax $("$VENV/bin/python" -c 'import importlib.metadata as m; print(m.version("jax"))')" \
    "in ${VENV#"$ROOT"/}"
}
