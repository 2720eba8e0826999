# Names of the fleet where one is expected, beside clap's completions.
function __muster_names
    muster complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c muster -a '(__muster_names)'
# Fish completes the value of a flag by the entries of that flag alone.
for flag in capability cluster deployment device instance meta-instance-name node not-running operation-id plan site
    complete -c muster -n "test (commandline -opc)[-1] = --$flag" -l $flag -x -a '(__muster_names)'
end
