package state

import (
	"net/http"
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A hook that no request can be made to is refused before the log.
func TestHooksThatCannotBeAskedAreRefused(t *testing.T) {
	for _, url := range []string{"http://[::1", "http://a:b/", "http://%zz/", "http://a\x01/", "http://?x", "http://a:99999999/", "https://@/"} {
		req, err := http.NewRequest(http.MethodPost, url, nil)
		if err == nil && req.URL.Host != "" {
			continue
		}
		if checkHook(&rootv1.KeyspaceSettings{Policy: &rootv1.Policy{HookUrl: url}}) == nil {
			t.Errorf("%q: %v", url, err)
		}
	}
	if d := checkHook(&rootv1.KeyspaceSettings{Policy: &rootv1.Policy{HookUrl: "HTTP://10.0.0.1/place"}}); d != nil {
		t.Errorf("a scheme is written in any case: %s", d.GetMessage())
	}
}
