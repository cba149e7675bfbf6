package gate

import (
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestWhatIsMarshaledCounts: replies that are on their way to the codec, however many at the same time,
// are no more than there is room for.
func TestWhatIsMarshaledCounts(t *testing.T) {
	g, _ := trial(64 << 20)
	inner := &still{}
	c := newConn(g, inner, inner, nil, "a", "origin")
	large := wrapperspb.Bytes(make([]byte, 1<<20))
	limit := g.cfg.Budget.Vars().Holders["replies"].Limit
	var underWay []any
	for c.room() == nil && len(underWay) < 100 {
		underWay = append(underWay, c.reply(large))
	}
	if held := g.cfg.Budget.Vars().Holders["replies"].Peak; len(underWay) == 100 || held > limit+2<<20 || held < limit/4 {
		t.Errorf("%d replies are marshaled at a time, of %d bytes together, where %d may wait", len(underWay), held, limit)
	}
	for _, v := range underWay {
		_, to := Open(v)
		to.Count(nil)
	}
	if err := c.room(); err != nil || c.unsent.bytes != 0 {
		t.Errorf("when none is on its way, %d bytes are held, and there is no room: %v", c.unsent.bytes, err)
	}
}
