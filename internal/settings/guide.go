package settings

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Guide says what a setting is for, and what another value of it costs.
type Guide struct {
	// What it says. Unset is what counts where nothing is set, if that is no value of its own.
	What, Unset string
	// Lower and Higher are the price of less, and of more; of words, of the first and of the others.
	Lower, Higher string
}

// Guide is that of a setting. Every setting has one.
func (s *Setting) Guide() Guide { return guides[s.Name] }

// Default is what counts where nothing is set, in a keyspace that is assigned, evened out and
// of no preset.
func (s *Setting) Default() string {
	k := &rootv1.KeyspaceSettings{Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Policy: &rootv1.Policy{Rebalance: &rootv1.Rebalance{}}}
	if text := guides[s.Name].Unset; text != "" {
		return text
	}
	return s.Counts(k)
}

// Least is the least that a setting may be where it is set; empty: any.
func (s *Setting) Least() string {
	n := state.LeastOf(s.Name)
	switch {
	case n == 0:
		return ""
	case s.millis:
		return (time.Duration(n) * time.Millisecond).String()
	default:
		return strconv.FormatUint(n, 10)
	}
}

const noLimit = "no limit but the cluster's"

var guides = map[string]Guide{
	"placement":            {"who says which member owns a region: members, or the planner", "required", "reported: nothing is placed, moved or fenced for you", "assigned: each change of an owner costs a quorum"},
	"ownership-max-owners": {"owners of a region; 1 is exclusive", "1", "one owner serves all of a region", "a region has several owners at once, and no fence"},
	"ownership-min-owners": {"owners that a shared region is given", "1", "with one owner it is away as long as a failure lasts", "more members hold the same"},
	"ownership-fence":      {"what the next owner of an exclusive region relies on", "epoch", "epoch: whoever keeps the data has to refuse old epochs", "ttl: nothing takes over before the ttl is over"},
	"ownership-ttl":        {"with the fence ttl: an owner that nobody confirmed for so long stops itself; one that was last told a longer time is waited for that long", "none", "a short pause of the network or of a process stops owners that are well", "after a failure regions are nobody's for longer"},

	"liveness-interval":      {"time between two frames of a member", "", "more frames to send and to judge", "silence is noticed later, loads and idle times are older"},
	"liveness-suspect-after": {"silence after which a member gets nothing new", fmt.Sprint(state.DefaultSuspectIntervals, " intervals"), "members are suspected that were slow for a moment", "new regions still go to one that is gone"},
	"liveness-dead-after":    {"silence after which a member has failed", fmt.Sprint(state.DefaultDeadIntervals, " intervals"), "a pause of a process, or of the network, moves all that it has", "its regions are nobody's for longer"},
	"liveness-closed-stream": {"what the end of a member's stream says", "suspect", "suspect: silence has to last", "dead: a broken connection that the probe does not excuse moves all that it has"},
	"liveness-probe":         {"whether the member is dialled when its stream breaks", "false", "false: only time tells a crash from a broken connection", "true: members are reached from coordinators, at their address"},

	"policy-strategy":                   {"who is proposed for a region without owners", "balanced", "balanced: who has least", "the others spread by other rules; hook asks an application, and waits for it"},
	"policy-ring-vnodes":                {"points of a member on the ring", fmt.Sprint(state.DefaultRingVnodes), "members have less even parts", "a plan takes longer; above a million points in all each member has fewer"},
	"policy-on-miss":                    {"what a lookup of a key that nobody owns does", "not_found", "not_found: regions are made by somebody", "claim: whoever asks for a key makes a region of it"},
	"policy-rebalance-absolute-limit":   {"regions on a member from which on it is relieved, whatever others have", "none", "regions move though nobody has less to do", "a member is relieved late"},
	"policy-rebalance-mean-permille":    {"of 1,000 of its fair part, what a member may have before it is relieved", "none", "regions move for small differences", "members stay less even"},
	"policy-rebalance-min-gap":          {"by how many average regions a move has to even two members out; by load, by 2% of the fair part at least", "1", "regions move for little", "members stay less even"},
	"policy-rebalance-interval":         {"time between two looks while something is not even", "", "more plans are made, and more moves are possible in a time", "evening out begins later"},
	"policy-rebalance-cooldown":         {"time between two rounds that relieve members, the interval at least", "the interval", "rounds act on loads that still show the last one", "what is uneven stays so for longer"},
	"policy-rebalance-max-moves":        {"regions that are moved in a round", "no limit of its own", "a round evens out less", "more regions move at once"},
	"policy-rebalance-by":               {"what is evened out: numbers of regions, their load, or both", "", "count: hot regions stay where they are", "load, both: members have to say what load is, and moves follow it"},
	"policy-rebalance-reserve-permille": {"by load: what all regions weigh together at least, of 1,000 of what members can take", "", "idle regions may all be on one member", "idle regions are moved as if they had load"},
	"policy-rebalance-settle":           {"how long a member that joined is let be", "at once, or 10s while others drain", "regions move to one that may go away again", "a new member is of no use for longer"},
	"policy-rebalance-in-flight":        {"moves under way from a member, and to one, to even out", "", "evening out takes longer", "more regions are on their way, and prepared, at once"},
	"policy-rebalance-round-permille":   {"of 1,000 of all load and regions, what a round moves to relieve members; joiners get as much as one lacks", "", "a hot member is relieved in more rounds", "more moves for what may be a short peak"},
	"policy-rebalance-hour-permille":    {"as round-permille, of an hour, of all that need not move", "", "evening out stops for the hour", "regions may move more often than they serve"},
	"policy-rebalance-spacing":          {"time between two such moves of a region", "", "a region may go back and forth", "one that was moved wrongly stays there"},
	"policy-rebalance-backoff":          {"time after a move that was given up", "", "a member that cannot take it is asked again and again", "a region stays longer where it should not be"},
	"policy-rebalance-load-max-age":     {"age from which on a load is not known, three frames at least", "", "loads of members that are slow count as unknown", "moves rest on what is no longer so"},
	"policy-rebalance-reshape":          {"whether hot ranges are split and cold neighbours of one member merged", "false", "false: a hot range stays one", "true: regions and epochs come and go; members must be able to"},
	"policy-rebalance-quiet":            {"how long a range is cold before it is merged, or has an owner less", "", "what is cold for a moment is merged, and split again", "more regions than are of use"},
	"policy-rebalance-cut":              {"how long after a split a range is merged at the earliest", "", "ranges are split and merged in turns", "more regions than are of use"},
	"policy-hook-url":                   {"whom the strategy hook asks", "none", "no hook", "regions wait for its answer, for policy-hook-timeout at most"},
	"policy-hook-timeout":               {"time that it has to answer", (state.DefaultHookTimeoutMillis * time.Millisecond).String(), "regions go by the fallback though it would have answered", "regions wait longer for one that hangs"},
	"policy-spread":                     {"label whose value no two owners of a region share", "none", "owners may all be in one zone", "a region has fewer owners when zones are fewer"},
	"policy-hook-fallback":              {"strategy where the hook has no answer", "balanced", "balanced: who has least", "as policy-strategy"},

	"cadence-checkpoint-interval": {"time between two checkpoints of a region", "none", "more entries in the log, and more work of owners", "more is done again after a crash"},
	"cadence-idle-evict":          {"how long nobody uses a point before it is released", "never", "what comes back is loaded again", "owners hold what nobody uses"},
	"cadence-idle-scan":           {"time between two looks for such points", "a quarter of idle-evict", "reports are looked through more often", "idle points are held for up to this much longer"},

	"limits-max-regions":            {"regions of the keyspace", noLimit, "new ones are refused sooner", "more memory of root peers and coordinators"},
	"limits-max-regions-per-member": {"regions that a member is given", noLimit, "regions have no owner when members are few", "a member may have more than it can serve"},
	"limits-max-keys-per-region":    {"keys in a region, as members report them", "none", "more warnings, and cuts", "large regions are slow to move"},
	"limits-refuse-keys":            {"whether a region with more is cut, or refused to be moved", "false", "false: it is shown only", "true: it is cut, or stays where it is"},

	"moves-prepare-max":   {"how long the next owner may prepare", "", "it takes over cold", "moves of members that are slow take longer"},
	"moves-deadline":      {"time after which a move is given up", "", "large regions never get away", "a region waits longer for a member that hangs"},
	"moves-hold-requests": {"how long requests wait at a member for a region that comes", "", "callers are refused while a region moves", "callers wait longer for one that does not come"},
	"moves-in-flight":     {"moves under way from a member, and to one", "", "a drain takes longer", "more regions are away at once"},

	"guards-mass-permille":  {"of 1,000 of the members that live or fell silent within the window without proof, how many may be silent before verdicts are held", "", "a failure of few is held, and their regions wait", "a coordinator that is cut off fails members that are well"},
	"guards-mass-window":    {"that window", "", "members that vanish one after the other are not seen together", "failures that have nothing to do with each other are"},
	"guards-flap-failures":  {"failures within the flap window after which a member gets nothing new", "", "a member that was unlucky is left out", "regions go to one that fails again and again"},
	"guards-flap-window":    {"that window, and for how long", "", "a member that flaps slowly is not seen", "one that is well again is left out for longer"},
	"guards-mass-hold":      {"how long a member has been silent when its verdict is held so no longer", "", "a long cut fails members that are well", "after a real loss of many, regions are nobody's for longer"},
	"guards-no-move-back":   {"how long nothing goes back to a member that recovered", "", "regions go back and forth with a bad network", "members stay less even after a short failure"},
	"scaling-enabled":       {"whether the keyspace says how many members it wants", "false", "false: nobody is asked for", "true: wishes are published, and told to the hook"},
	"scaling-up-permille":   {"how full members are, of 1,000, when one more is wished for", "", "members are started that have little to do", "members are full before help comes"},
	"scaling-down-permille": {"how full they are, for five spacings on end, when one fewer is", "", "members stay that have little to do", "those that stay may be too full soon, and one is wished for again"},
	"scaling-spacing":       {"time between two changes of how many there are", "", "wishes follow what lasts for a moment", "a real change takes longer"},
	"scaling-min-members":   {"fewest members that are wished for", "", "less is left when one fails", "members that have nothing to do"},
	"scaling-max-members":   {"most members that are wished for", "", "load has nowhere to go", "a mistake costs more"},
	"scaling-hook-url":      {"whom wishes are posted to", "none", "wishes are published only", "somebody has to answer"},
	"scaling-hook-timeout":  {"time that it has to answer", "", "wishes are posted again though they were taken", "one that hangs holds the next wish up"},
	"start-members":         {"members that the first plan of a new keyspace waits for, 1s at most", "none", "the first member gets everything, and much moves later", "a new keyspace has no owners for up to 1s"},
	"start-hold":            {"how long regions are kept for the next process of a member that ended", "none; 30s of actors and partitions", "a restart moves all that it has", "regions of one that stays away are nobody's for longer"},
}
