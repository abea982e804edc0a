"""What the Python checks share: each check is a function, its result a line."""
import sys
import traceback


def run(checks, unsupported=()):
    """Runs checks; those that are unsupported may fail, which is shown."""
    failed = 0
    for check in [*checks, *unsupported]:
        name = (check.__doc__ or check.__name__).strip()
        try:
            check()
            print("ok\t" + name, flush=True)
        except Exception as err:  # any exception is a result
            known = check in unsupported
            failed += not known
            said = " ".join(str(err).split())[:200] or type(err).__name__
            print("%s\t%s\t%s: %s" % ("unsupported" if known else "FAIL", name, type(err).__name__, said), flush=True)
            if "-v" in sys.argv:
                traceback.print_exc()
    sys.exit(1 if failed else 0)


def equal(got, want):
    if got != want:
        raise AssertionError("got %r, want %r" % (got, want))


def raises(code, do):
    """do must fail with this code of ClickHouse."""
    try:
        do()
    except Exception as err:
        if str(code) not in str(err) and str(getattr(err, "code", "")) != str(code):
            raise AssertionError("it fails with another error: %s" % str(err)[:150]) from None
        return
    raise AssertionError("it did not fail")
