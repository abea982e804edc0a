-- One row for each thing that looks wrong in what an engine sends: what `sluice lint` prints. Ask with WHERE check_name = '…' for one of them, as together they read every record several times.
{{.CreateView "v_lint"}}
(
    {{columns "source"}},
    check_name String COMMENT 'which check, such as rounded_keys: its section below has its SQL',
    finding String COMMENT 'what it means',
    findings UInt64 COMMENT 'how much was found',
    example String COMMENT 'one of them',
    what_to_do String COMMENT 'what to do about it'
) AS
{{.Lint}};
