package browser

import (
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
)

// offline disables or enables the network of the tab.
func (tb *tab) offline(is bool) {
	tb.t.Helper()
	conditions := &network.Conditions{Offline: is, DownloadThroughput: -1, UploadThroughput: -1}
	call(tb, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{MatchedNetworkConditions: []*network.Conditions{conditions}})
}

// TestALostConnectionIsTakenUpAgain: a live page reports a lost connection, resumes
// automatically, pauses while hidden, and asks for a sign-in when the session has expired.
func TestALostConnectionIsTakenUpAgain(t *testing.T) {
	tb := signedIn(t)
	tb.expects = true // requests fail, which is no error of the page
	for path, live := range map[string]string{"/": "As of", "/records": "Live"} {
		tb.open(path)
		tb.shows(live)
		tb.offline(true)
		tb.shows("The connection to the console is lost. Retrying")
		tb.offline(false)
		tb.shows(live)
		for _, hidden := range []struct{ is, says string }{{"true", "Not updated while the page is hidden"}, {"false", live}} {
			if _, err := evaluate[int](tb, `Object.defineProperty(document, 'hidden', { value: `+hidden.is+`, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); 0`); err != nil {
				t.Fatal(err)
			}
			tb.shows(hidden.says)
		}
	}
	tb.open("/records?type=JOB")
	tb.shows("Live")
	tb.offline(true)
	call(tb, network.ClearBrowserCookies, cdp.Empty{})
	tb.offline(false)
	tb.shows("Access token")
	tb.is("the sign-in leads back to the page", `document.querySelector('[name=next]').value === '/records?type=JOB'`)
}
