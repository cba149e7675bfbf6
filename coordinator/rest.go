package coordinator

import (
	"net/http"

	"github.com/nokv/nokv/coordinator/rest"
	"github.com/nokv/nokv/mtls/principal"
)

// REST serves the coordinator's calls as JSON, to callers whom caller names. Pages of
// origins may ask in a browser.
func (c *Coordinator) REST(caller func(*http.Request) (principal.Principal, error), origins []string) http.Handler {
	return rest.New(rest.Config{
		As: c.server.As, Caller: caller, Secure: c.cfg.TLS != nil, Cluster: func() uint64 { return c.follower.View().ClusterID },
		Healthy: c.Healthy, Budget: c.cfg.Budget, Origins: origins, Logger: c.cfg.Logger.Named("rest"),
	})
}
