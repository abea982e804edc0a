-- One row for each inconsistency in the records of an engine, as `sluice lint` prints them. Select one check with WHERE check_name = '…': all checks together read every record several times.
VIEW v_lint
source
check_name String -- which check, such as rounded_keys: its section below has its SQL
finding String -- what it means
findings UInt64 -- how much was found
example String -- one of them
what_to_do String -- what to do about it
AS {{.Checks}}
