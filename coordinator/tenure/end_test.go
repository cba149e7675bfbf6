package tenure_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

func askedToEnd(t *rootv1.Tenure) *rootv1.Tenure {
	c := proto.CloneOf(t)
	c.End = &rootv1.TenureEnd{Actor: "operator/ann", Why: "upgrade"}
	return c
}

// An era that was asked to end is retired by its holder at once, heard of by the
// view or by a refused confirmation. It leaves the Tenure to others for a while, and
// claims when nobody took it.
func TestAskedToEndRetires(t *testing.T) {
	for _, byView := range []bool{true, false} {
		s := newScript(t, nil)
		s.hold(300 * time.Millisecond)
		ended := askedToEnd(s.core.Tenure())
		if byView {
			s.view(ended)
		} else {
			s.used(100 * time.Millisecond).expect(tenure.Confirm)
			s.core.OnConfirmed(1, 2, &rootv1.ConfirmTenureResponse{Tenure: ended}, nil, s.now)
		}
		if a := s.expect(tenure.End, tenure.Retire); a[1].Era != 1 {
			t.Fatalf("retires era %d", a[1].Era)
		}
		retired := proto.CloneOf(ended)
		retired.Retired = true
		s.view(retired).expect()
		s.after(4900 * time.Millisecond).expect()
		s.after(200 * time.Millisecond).expect(tenure.Claim)
	}
}

// Whoever took the Tenure meanwhile ends the wait: what comes after is as ever.
func TestAskedToEndYieldsToOthers(t *testing.T) {
	s := newScript(t, nil)
	s.hold(300 * time.Millisecond)
	s.view(askedToEnd(s.core.Tenure())).expect(tenure.End, tenure.Retire)
	other := tenureOf(2, "c2", 22, 300*time.Millisecond)
	s.view(other).expect()
	gone := proto.CloneOf(other)
	gone.Retired = true
	s.view(gone).expect(tenure.Claim)
}

// A standby tries soon, and not before the holder had the time to retire; a process
// of the holder's name that was started since yields as the holder does.
func TestStandbyClaimsWhatWasAskedToEnd(t *testing.T) {
	for name, first := range map[string]time.Duration{"c2": 20 * time.Millisecond, "c1": 5 * time.Second} {
		s := newScript(t, func(s *tenure.Settings) { s.ID, s.Incarnation = name, 99 })
		held := tenureOf(1, "c1", 11, 300*time.Millisecond)
		if name == "c2" {
			s.view(held).expect()
		}
		s.view(askedToEnd(held))
		s.after(first - time.Millisecond).expect()
		s.after(time.Millisecond).expect(tenure.Claim)
	}
}

// An era that comes to its claimant when it was asked to end is never begun.
func TestAskedToEndBeforeItBegan(t *testing.T) {
	s := newScript(t, nil)
	s.view(nil).expect(tenure.Claim)
	s.core.OnClaimed(granted(askedToEnd(tenureOf(1, "c1", 11, time.Second))), nil, s.now)
	s.expect(tenure.Retire)
	if s.core.Era() != 0 {
		t.Fatal("it was begun")
	}
}

// Each era has a secret of its own: the log shows that of the last one. Below the
// feature level that knows it there is none.
func TestEveryEraHasItsSecret(t *testing.T) {
	var digests [][]byte
	for _, key := range []string{"one", "other"} {
		var count tenure.Counters
		r := tenure.NewRaw(tenure.RawConfig{
			Settings:  tenure.Settings{ID: "c1", Incarnation: 11, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID}},
			RetireKey: []byte(key), Wall: func() uint64 { return 1 },
		}, &count)
		for era := uint64(1); era <= 2; era++ {
			ended := tenureOf(era, "c2", 22, time.Second)
			ended.Retired = true
			r.OnView(tenure.Authority{Tenure: ended}, 1)
			m := r.Messages()
			if len(m) != 1 || len(m[0].Claim.GetRetireDigest()) != 32 {
				t.Fatalf("sent %v", m)
			}
			digests = append(digests, m[0].Claim.RetireDigest)
			r.OnAnswer(m[0], tenure.Answer{Claim: refusedClaim(rootv1.Reason_REASON_ERA_STALE, era+1, 0)}, 1)
		}
	}
	for i, a := range digests {
		for _, b := range digests[:i] {
			if bytes.Equal(a, b) {
				t.Errorf("two of %d eras have one digest", len(digests))
			}
		}
	}
}

// A coordinator that no member reaches, and that has heard no holder for long, may reach the root
// and nobody else: it leaves an era that was retired, and one that its holder lets run out, to others
// first. One that hears the holder, as all do in a cluster without members, waits for nobody.
func TestWhoReachesTheRootAloneComesLast(t *testing.T) {
	held := tenureOf(1, "c2", 22, 300*time.Millisecond)
	retired := proto.CloneOf(held)
	retired.Retired = true
	start := func(heard, lonely bool) *script {
		s := newScript(t, func(s *tenure.Settings) { s.Probed = true })
		s.view(held).expect()
		for range 12 {
			if s.now = s.now.Add(time.Second); heard {
				s.core.OnProbe("c2:1", tenure.HealthServing, s.now)
			}
			s.core.OnLonely(lonely, s.now)
		}
		return s
	}
	t.Run("retired", func(t *testing.T) {
		s := start(false, true)
		s.view(retired).after(1999 * time.Millisecond).expect()
		s.after(time.Millisecond).expect(tenure.Claim)
	})
	t.Run("not retired", func(t *testing.T) {
		s := start(false, true)
		s.after(0).expect(tenure.Claim)
		s.core.OnClaimed(refusedClaim(rootv1.Reason_REASON_PRIMACY, 1, 300*time.Millisecond), nil, s.now)
		s.after(2299 * time.Millisecond).expect()
		s.after(100 * time.Millisecond).expect(tenure.Claim)
	})
	for name, s := range map[string]*script{"it hears the holder": start(true, true), "members reach it": start(false, false)} {
		t.Run(name, func(t *testing.T) {
			s.core.Actions()
			s.core.OnClaimed(refusedClaim(rootv1.Reason_REASON_PRIMACY, 1, time.Millisecond), nil, s.now)
			s.core.Actions()
			s.view(retired).expect(tenure.Claim)
		})
	}
}
