package proxy_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/proxy"
	"google.golang.org/grpc"
)

// WatchRevoked implements the service by what the test says.
func (w *world) WatchRevoked(_ *coordinatorv1.WatchRevokedRequest, s grpc.ServerStreamingServer[coordinatorv1.WatchRevokedResponse]) error {
	for {
		select {
		case names := <-w.revoked:
			if err := s.Send(&coordinatorv1.WatchRevokedResponse{Certificates: names}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// What a caller has opened, a stream or a WebSocket, ends when its certificate has ended, and at once when that is revoked.
func TestWhatIsUnderWayEndsWithTheCallersCertificate(t *testing.T) {
	const life = 10 * time.Minute
	for i, revoked := range []bool{false, true, true} {
		callers := proxy.NewCallers
		if i == 2 {
			callers = proxy.NewTokenCallers
		}
		synctest.Test(t, func(t *testing.T) {
			w := startInMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Upgrade") == "" {
					_, _ = io.WriteString(w, "x")
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
					return
				}
				c, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x02hi")
				_, _ = io.Copy(io.Discard, rw)
			}))
			w.revoked, w.judges = make(chan []string), func(*coordinatorv1.CheckAccessRequest) bool { return true }
			certs := proctest.NewCertificates(t, "test")
			own := certs.Open(principal.Proxy, "p1")
			certs.Life = life
			web := certs.Of(principal.Client, "web")
			pair, err := tls.LoadX509KeyPair(filepath.Join(web, mtls.CertFile), filepath.Join(web, mtls.KeyFile))
			must(t, err)
			p := w.proxy(proxy.Config{Callers: callers(w.client, own)})
			s := httptest.NewUnstartedServer(own.Handler(p.Lookup()))
			w.lan.instead(s)
			s.Listener = own.HTTP(s.Listener)
			s.Start()
			t.Cleanup(s.Close)
			begun := time.Now()
			var under []net.Conn
			for request, answer := range map[string]string{"": "HTTP/1.1 200", "Connection: Upgrade\r\nUpgrade: websocket\r\n": "HTTP/1.1 101"} {
				c := tls.Client(w.lan.connect(t, s), &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: certs.Roots(), ServerName: "localhost"})
				_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nK: k\r\n"+request+"\r\n")
				must(t, err)
				line, err := bufio.NewReader(c).ReadString('\n')
				must(t, err)
				if !strings.HasPrefix(line, answer) {
					t.Fatalf("%q is answered %s", request, line)
				}
				time.AfterFunc(2*life, func() { _ = c.Close() })
				under = append(under, c)
			}
			most, least := life, life-life/20
			if revoked {
				time.Sleep(time.Minute)
				begun = time.Now()
				select {
				case w.revoked <- []string{"client/web"}:
				case <-time.After(time.Second):
					t.Fatal("the proxy does not ask what is revoked")
				}
				most, least = time.Second, 0
			}
			for _, c := range under {
				_, _ = io.Copy(io.Discard, c)
				if took := time.Since(begun); took > most || took < least {
					t.Errorf("revoked %t: what is under way ends after %v", revoked, took)
				}
			}
		})
	}
}
