-- One row for each thing that looks wrong in what an engine sends: what `sluice lint` prints. Ask with WHERE check_name = '…' for one of them, as together they read every record several times.
VIEW v_lint
source
check_name String -- which check, such as rounded_keys: its section below has its SQL
finding String -- what it means
findings UInt64 -- how much was found
example String -- one of them
what_to_do String -- what to do about it
AS {{.Checks}}
