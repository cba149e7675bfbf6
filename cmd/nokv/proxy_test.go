package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/test/size"
)

var proxyRounds = size.Int("proxy-rounds", 2, 40, "end so many workers in TestP84P85NokvProxyServesThroughAKill, by kill -9 and in order in turn, and start them again")

func TestP80ProxysWords(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"proxy --key-header H", "--keyspace is required"},
		{"proxy --keyspace k", "say where the key is, once"},
		{"proxy --keyspace k --key-header H --key-query q", "say where the key is, once"},
		{"proxy --keyspace k --key-path games", "begins with a slash"},
		{"proxy --keyspace k --key-path /games", "{key...} in it once"},
		{"proxy --keyspace k --key-header H --addr 0.0.0.0:1", "--insecure"},
		{"proxy --keyspace k --key-header H --addr 0.0.0.0:1 --plain", "--plain is for this machine"},
		{"proxy --keyspace k --key-header H --max-body 0", "--max-body"},
		{"proxy --keyspace k --key-header nokv_region", "headers of Nokv- are those that the proxy sets"},
		{"proxy --keyspace k --key-header H extra", "no arguments"},
		{"proxy --keyspace k --key-header H --certs " + proctest.NewCertificates(t, "test").Of(principal.Client, "web"), "that of client/web, not of a proxy"},
		{"proxy --keyspace k --key-header H --h2c", "h2c"},
		{"proxy --keyspace k --key-header H --callers anybody", "use certificate, token or nobody"},
		{"proxy --keyspace k --key-header H --callers token", "without certificates of its own"},
		{"proxy --keyspace k --key-header H --plain --callers certificate --certs " + proctest.NewCertificates(t, "test").Of(principal.Proxy, "p"), "nobody shows one with --plain"},
	} {
		wantRefused(t, c.line, exitUsage, c.want)
	}
}

// With certificates callers speak the protocol that they like, as curl and browsers take HTTP/2 where it
// is offered.
func TestP80NokvProxyWithCertificatesSpeaksWhatItOffers(t *testing.T) {
	t.Parallel()
	addrs, err := procs.Addrs(1)
	if err != nil {
		t.Fatal(err)
	}
	certs := proctest.NewCertificates(t, "test")
	proctest.Start(t, proctest.Options{
		Name: "proxy", Path: nokvPath(t), Env: nokvEnv(t),
		Args: []string{"proxy", "--keyspace", "games", "--key-header", "K", "--addr", addrs[0], "--hold", "10ms", "--coordinator-addr", nobody(t), "--certs", certs.Of(principal.Proxy, "proxy")},
	})
	pair, err := tls.LoadX509KeyPair(filepath.Join(certs.Of(principal.Client, "web"), "tls.crt"), filepath.Join(certs.Of(principal.Client, "web"), "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	for want, speaks := range map[string][]bool{"HTTP/1.1": {true, false}, "HTTP/2.0": {true, true}, "HTTP/2.0 ": {false, true}} {
		transport := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: certs.Roots()}}
		transport.Protocols.SetHTTP1(speaks[0])
		transport.Protocols.SetHTTP2(speaks[1])
		t.Cleanup(transport.CloseIdleConnections)
		c := &http.Client{Transport: transport, Timeout: proctest.Patience}
		for end := time.Now().Add(proctest.Patience); ; time.Sleep(20 * time.Millisecond) {
			resp, err := c.Get("https://" + addrs[0]) // which no coordinator says whether this caller may: the proxy itself refuses it
			if err == nil {
				_ = resp.Body.Close()
				if resp.Proto != strings.TrimSpace(want) || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Nokv-Reason") == "" {
					t.Errorf("a caller with HTTP/1.1 %t and HTTP/2 %t is answered %s %d", speaks[0], speaks[1], resp.Proto, resp.StatusCode)
				}
				long, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addrs[0], nil)
				if err != nil {
					t.Fatal(err)
				}
				long.Header.Set("X-Long", strings.Repeat("x", 3*proxy.MaxHeaderBytes))
				if resp, err = c.Do(long); err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge || resp.Header.Get("Nokv-Reason") != "headers_too_large" {
					t.Errorf("headers that are too long, by %s: %d %v", resp.Proto, resp.StatusCode, resp.Header)
				}
				break
			}
			if !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(end) {
				t.Errorf("a caller with HTTP/1.1 %t and HTTP/2 %t: %v", speaks[0], speaks[1], err)
				break
			}
		}
	}
}

// Through a proxy, nobody sees a worker that is killed, or that ends in order, but by a request
// that takes longer.
func TestP84P85NokvProxyServesThroughAKill(t *testing.T) {
	t.Parallel()
	h := startHosting(t)
	addrs, err := procs.Addrs(2)
	if err != nil {
		t.Fatal(err)
	}
	p := proctest.Start(t, h.Options("proxy", "proxy", "--keyspace", "games", "--key-path", "/games/{key}", "--addr", addrs[0], "--metrics-addr", addrs[1],
		"--hold", "30s", "--coordinator-addr", h.Coordinators()))
	page := func(url string) (int, string, error) {
		resp, err := http.Get(url)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	h.eventually(func(context.Context) error {
		if code, body, err := page("http://" + addrs[1] + "/readyz"); err != nil || code != 200 {
			return fmt.Errorf("it is not ready: %d %s %v", code, body, err)
		}
		return nil
	})
	var served atomic.Int64
	var longest atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			for i := k; ; i += 4 {
				select {
				case <-stop:
					return
				default:
				}
				begin := time.Now()
				code, body, err := page(fmt.Sprintf("http://%s/games/g%04d", addrs[0], i%hostedPoints))
				if err != nil || code != 200 {
					t.Errorf("a request failed: %d %s %v", code, body, err)
					return
				}
				for took, most := int64(time.Since(begin)), longest.Load(); took > most && !longest.CompareAndSwap(most, took); {
					most = longest.Load()
				}
				served.Add(1)
			}
		})
	}
	after := func(n int64) {
		want := served.Load() + n
		h.eventually(func(context.Context) error {
			if served.Load() < want && !t.Failed() {
				return fmt.Errorf("%d of %d answers", served.Load(), want)
			}
			return nil
		})
	}
	after(hostedPoints)
	gaps := map[string][]time.Duration{}
	for round := range *proxyRounds {
		longest.Store(0)
		i, how := round%hostedWorkers, "killed"
		w := h.workers[i]
		if round%2 == 0 {
			w.Kill()
		} else if w.Signal(syscall.SIGTERM); w.Wait(hostedWithin) != 0 {
			t.Errorf("a worker that is to end says\n%s", w.Tail())
		} else {
			how = "ended in order"
		}
		after(4 * hostedPoints)
		gaps[how] = append(gaps[how], time.Duration(longest.Load()))
		h.start(i)
		h.eventually(func(ctx context.Context) error { return h.connected(ctx, hostedWorkers) })
		after(hostedPoints)
	}
	close(stop)
	wg.Wait()
	for how, all := range gaps {
		slices.Sort(all)
		testreport.Linef(t, "through the proxy, a worker %s, %d rounds: the longest request of a round took %v by the median, %v at most; %d requests in all",
			how, len(all), all[len(all)/2].Round(time.Microsecond), all[len(all)-1].Round(time.Microsecond), served.Load())
	}
	if _, body, err := page("http://" + addrs[1] + "/debug/vars"); err != nil || !strings.Contains(body, `"retries"`) {
		t.Errorf("its numbers are %s, %v", body, err)
	}
	if !strings.Contains(p.Log(), `"result":"hit"`) {
		t.Errorf("there is no access log: %s", p.Tail())
	}
}
