package chronicle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nokv/nokv/internal/settings"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// ofKeyspace tells what is about keyspaces and who may use them; nil: the event is not.
func (s *scene) ofKeyspace(e *rootv1.Event) []piece {
	var p piece
	switch k := e.GetKind().(type) {
	case *rootv1.Event_KeyspaceCreated:
		c := k.KeyspaceCreated
		p.keyspace = c.GetName()
		p.tell = said("keyspace %s is created: %s", c.GetName(), about(c.GetSettings()))
	case *rootv1.Event_KeyspaceUpdated:
		p = s.updated(k.KeyspaceUpdated)
	case *rootv1.Event_KeyspaceDeleted:
		if p.keyspace = k.KeyspaceDeleted.GetName(); p.keyspace == "" {
			p.keyspace = s.keyspace(k.KeyspaceDeleted.GetKeyspaceId())
		}
		p.tell = said("keyspace %s is deleted", p.keyspace)
	case *rootv1.Event_AccessGranted:
		g := k.AccessGranted.GetGrant()
		p.keyspace = g.GetKeyspace()
		p.tell = said("%s may %s keyspace %s", g.GetPrincipal(), verbs(g.GetVerbs()), g.GetKeyspace())
	case *rootv1.Event_AccessRevoked:
		r := k.AccessRevoked
		p.keyspace = r.GetKeyspace()
		p.tell = said("%s may %s keyspace %s no more", r.GetPrincipal(), verbs(r.GetVerbs()), r.GetKeyspace())
	default:
		return nil
	}
	return []piece{p}
}

// about is the settings in a few words.
func about(k *rootv1.KeyspaceSettings) string {
	layout := "ranges"
	switch l := k.GetLayout().GetKind().(type) {
	case *rootv1.Layout_Points_:
		layout = "points"
	case *rootv1.Layout_Slots_:
		layout = fmt.Sprintf("%d slots", l.Slots.GetCount())
	}
	text := layout + ", " + strings.ToLower(strings.TrimPrefix(k.GetPlacement().String(), "PLACEMENT_"))
	if k.GetPreset() != "" {
		text += ", of preset " + k.GetPreset()
	}
	return text
}

func (s *scene) updated(e *rootv1.KeyspaceUpdated) piece {
	name := e.GetName()
	if name == "" {
		name = s.keyspace(e.GetKeyspaceId())
	}
	text := fmt.Sprintf("keyspace %s is changed", name)
	if k := s.before.KeyspaceByName(name); s.known && k != nil {
		var changes []string
		for _, c := range settings.Diff(k.GetSettings(), e.GetSettings()) {
			changes = append(changes, fmt.Sprintf("%s %s (before: %s)", c.Name, orNone(c.To), orNone(c.From)))
		}
		text += because(strings.Join(changes, ", "))
	}
	return piece{keyspace: name, tell: said("%s", text)}
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func verbs(all []rootv1.Verb) string {
	var words []string
	for _, v := range all {
		words = append(words, strings.ToLower(strings.TrimPrefix(v.String(), "VERB_")))
	}
	if len(words) == 0 {
		return "do anything in"
	}
	return and(words) + " in"
}

// mostCertificates are named in a sentence.
const mostCertificates = 16

// certificates tells of those that are in one list and not in another; both are in order.
func certificates(are string, in, notIn []string) string {
	var names []string
	for _, name := range in {
		if _, there := slices.BinarySearch(notIn, name); !there {
			names = append(names, name)
		}
	}
	switch more := len(names) - mostCertificates; {
	case len(names) == 0:
		return ""
	case more > 0:
		names = append(names[:mostCertificates], fmt.Sprintf("%d others", more))
	}
	return "; certificates " + are + ": " + and(names)
}

// ofCluster tells what is about the cluster as a whole.
func (s *scene) ofCluster(e *rootv1.Event) piece {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_ClusterBootstrapped:
		c := k.ClusterBootstrapped.GetCluster()
		var peers []string
		for _, p := range c.GetPeers() {
			peers = append(peers, fmt.Sprint(p.GetNodeId()))
		}
		return piece{tell: said("cluster %016x begins, with root peers %s", c.GetClusterId(), and(peers))}
	case *rootv1.Event_TenureClaimed:
		c := k.TenureClaimed
		text := fmt.Sprintf("%s holds the Tenure, in era %d", c.GetHolderId(), c.GetExpectedEra()+1)
		if t := s.before.Tenure(); s.known && c.GetPredecessorExpired() && !t.GetRetired() {
			text += fmt.Sprintf("; that of %s ran out", t.GetHolderId())
		}
		return piece{routine: s.outcome == rejected, tell: said("%s", text)} // who came second
	case *rootv1.Event_TenureRetired:
		return piece{tell: said("%s gives the Tenure back: era %d is over", k.TenureRetired.GetHolderId(), k.TenureRetired.GetEra())}
	case *rootv1.Event_TenureEnded:
		return piece{tell: said("era %d shall end", k.TenureEnded.GetEra())}
	case *rootv1.Event_FenceExtended:
		f := k.FenceExtended
		what := strings.ToLower(strings.TrimPrefix(f.GetMandate().String(), "MANDATE_"))
		return piece{routine: true, tell: said("era %d may give out %d values more of %s", f.GetEra(), f.GetSize(), what)}
	case *rootv1.Event_HandoverAdvanced:
		stage := strings.ToLower(strings.TrimPrefix(k.HandoverAdvanced.GetStage().String(), "HANDOVER_STAGE_"))
		return piece{routine: true, tell: said("the handover to era %d is %s", k.HandoverAdvanced.GetEra(), stage)}
	case *rootv1.Event_ClusterSettingsChanged:
		c := k.ClusterSettingsChanged.GetSettings()
		text := fmt.Sprintf("a claim of the Tenure may ask for a ttl of %d ms at most", cmp.Or(c.GetMaxTenureTtlMillis(), state.DefaultMaxTenureTTLMillis))
		if s.known {
			_, before := s.before.RevokedCertificates()
			text += certificates("revoked", c.GetRevokedCertificates(), before) + certificates("not revoked any more", before, c.GetRevokedCertificates())
		}
		return piece{tell: said("%s", text)}
	case *rootv1.Event_FeatureLevelRaised:
		return piece{tell: said("the feature level is %d (before: %d)", k.FeatureLevelRaised.GetTo(), k.FeatureLevelRaised.GetFrom())}
	case *rootv1.Event_PinKeyRotated:
		return piece{tell: said("pins have a new key")}
	case *rootv1.Event_TokenKeyRotated:
		return piece{tell: said("bearer tokens have a new key")}
	case *rootv1.Event_TokenRevoked:
		return piece{tell: said("the bearer token %d-%016x is revoked", k.TokenRevoked.GetKeyId(), k.TokenRevoked.GetSerial())}
	case *rootv1.Event_RootPeerAdded:
		return piece{tell: said("root peer %d is to replace %d, and gets the log", k.RootPeerAdded.GetPeer().GetNodeId(), k.RootPeerAdded.GetReplaces())}
	case *rootv1.Event_RootPeerPromoted:
		return piece{tell: said("root peer %d begins to vote", k.RootPeerPromoted.GetNodeId())}
	case *rootv1.Event_RootPeersSettled:
		return piece{tell: said("root peer %d votes in the place of the one that it replaces", k.RootPeersSettled.GetNodeId())}
	case *rootv1.Event_RootPeerDropped:
		return piece{tell: said("root peer %d is given up", k.RootPeerDropped.GetNodeId())}
	}
	return piece{tell: said("%s", strings.ReplaceAll(KindOf(e), "_", " "))}
}
