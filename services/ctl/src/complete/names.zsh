# Names of the fleet where one is expected; clap's completions otherwise.
_muster_names() {
    local -a names
    names=(${(f)"$(muster complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ! ${#names} )); then
        _muster "$@"
    elif [[ "${names[1]}" == */ ]]; then
        compadd -S '' -- "${names[@]}"
    else
        compadd -- "${names[@]}"
    fi
}
compdef _muster_names muster
