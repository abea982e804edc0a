package browser

import (
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"sluice/pkg/fatal"
)

// TestAnEngineIsAddedAndRejected: the Sources page creates a token, which is accepted, and
// another, and revokes both; then the overview lists the engine as a rejected client.
func TestAnEngineIsAddedAndRejected(t *testing.T) {
	tb := signedIn(t)
	press := func(do string, more ...chromedp.Action[chromedp.Void]) (token string) {
		t.Helper()
		tb.open("/sources")
		tb.do(chromedp.SetValue(chromedp.CSS("#name"), "browser-engine"))
		tb.do(append(more, chromedp.Click(chromedp.CSS(`button[name=do][value=`+do+`]`)))...)
		tb.is(do+" is answered", `!!document.querySelector('#said, [role=alert]')`)
		said, err := evaluate[string](tb, `(/sluice_[\w-]+/.exec(document.querySelector('#said ~ pre')?.textContent) ?? [''])[0]`)
		fatal.If(t, err)
		return said
	}
	tokens := []string{press("add"), press("rotate")}
	tb.accessible()
	for _, token := range tokens {
		fatal.If(t, postAs(token, "[]", http.StatusOK))
	}
	press("remove")
	tb.shows("tick the box to confirm")
	fatal.If(t, postAs(tokens[1], "[]", http.StatusOK))
	press("remove", chromedp.Click(chromedp.CSS("[name=sure]")))
	tb.shows("2 tokens of source browser-engine are revoked")
	eventually(t, patience, func() error { return postAs(tokens[1], "[]", http.StatusUnauthorized) }) // within a second
	tb.open("/")
	tb.shows("Client unknown at 127.0.0.1 is rejected: token_invalid (401)")
	tb.do(chromedp.Click(chromedp.CSS(`a.fig[href="/sources#rejected"]`)), chromedp.WaitVisible(chromedp.CSS("#rejected")))
	tb.is("it is listed", `document.querySelector('#rejected ~ .wide tbody').innerText.includes('127.0.0.1')`)
	if strings.Contains(tb.text(), tokens[0]) {
		t.Error("a token is shown again")
	}
}
