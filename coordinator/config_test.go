package coordinator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator"
	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/tso"
)

func valid() coordinator.Config {
	return coordinator.Config{
		ID: "c1", Incarnation: 1, Advertise: "127.0.0.1:2379", RootPeers: map[uint64]string{1: "127.0.0.1:2380"},
		IDStart: 1, TSOStart: 1, Logger: hclog.NewNullLogger(),
	}
}

// What the root would refuse for ever, or what cannot even be sent to it, is an
// error before anything starts.
func TestBadConfigsAreRefused(t *testing.T) {
	if _, err := coordinator.New(valid()); err != nil {
		t.Fatal(err)
	}
	stamp := func(ahead time.Duration) uint64 { return uint64(time.Now().Add(ahead).UnixMilli()) << 18 }
	high := valid()
	high.IDStart, high.TSOStart = idalloc.MaxID-1<<60, stamp(5*time.Minute)
	if _, err := coordinator.New(high); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		set  func(*coordinator.Config)
		says string
	}{
		"no id":           {func(c *coordinator.Config) { c.ID = "" }, "id"},
		"long id":         {func(c *coordinator.Config) { c.ID = strings.Repeat("c", 256) }, "256 bytes"},
		"control in id":   {func(c *coordinator.Config) { c.ID = "a\tb" }, "control"},
		"id not text":     {func(c *coordinator.Config) { c.ID = "\xff" }, "UTF-8"},
		"long address":    {func(c *coordinator.Config) { c.Advertise = strings.Repeat("h", 600) + ":1" }, "602 bytes"},
		"address no text": {func(c *coordinator.Config) { c.Advertise = "\xff:1" }, "UTF-8"},
		"no incarnation":  {func(c *coordinator.Config) { c.Incarnation = 0 }, "ncarnation"},
		"id start":        {func(c *coordinator.Config) { c.IDStart = idalloc.MaxID + 1 }, "id start"},
		"few ids left":    {func(c *coordinator.Config) { c.IDStart = idalloc.MaxID - 1<<60 + 1 }, "id start"},
		"timestamp start": {func(c *coordinator.Config) { c.TSOStart = tso.Max + 1 }, "timestamp start"},
		"in an hour":      {func(c *coordinator.Config) { c.TSOStart = stamp(time.Hour) }, "timestamp start"},
	} {
		cfg := valid()
		c.set(&cfg)
		if _, err := coordinator.New(cfg); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want something about %q", name, err, c.says)
		}
	}
}
