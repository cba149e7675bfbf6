package client_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls/principal"
	"google.golang.org/grpc"
)

// A root peer is asked by its name: at the address where another one is by now nothing is asked.
func TestARootPeerIsTheOneThatIsMeant(t *testing.T) {
	certs := proctest.NewCertificates(t, "prod")
	for name, refused := range map[string]string{"1": "", "2": "has a certificate of root/2, want root/1"} {
		r := newFakeRoot(t, 1)
		r.peers[1].stop()
		r.peers[1].options = []grpc.ServerOption{grpc.Creds(certs.Open(principal.Root, name).Server())}
		r.peers[1].start()
		cfg := r.config()
		cfg.TLS = certs.Open(principal.Coordinator, "c1")
		ctx, cancel := within(proctest.Patience)
		err := r.start(cfg).Status(ctx)[0].Err
		cancel()
		if (err != nil) != (refused != "") || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("root/%s, where root/1 is meant: %v", name, err)
		}
	}
}
