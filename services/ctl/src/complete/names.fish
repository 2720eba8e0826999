# Names of the fleet where one is expected, beside clap's completions.
complete -c muster -a '(muster complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
