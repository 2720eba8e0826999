# Names of the fleet where one is expected; clap's completions otherwise.
_muster_names() {
    local names cur="${COMP_WORDS[COMP_CWORD]}"
    names="$(muster complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    if [[ -z "${names}" ]]; then
        _muster "$@"
        return
    fi
    COMPREPLY=($(compgen -W "${names}" -- "${cur#=}"))
    # A site alone is no device yet.
    if [[ "${COMPREPLY[0]}" == */ ]] && [[ "$(type -t compopt)" == builtin ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _muster_names -o bashdefault -o default muster
