package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/evenness"
	"github.com/nokv/nokv/internal/settings"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
)

func planCommand() *command {
	return &command{
		name: "plan", args: "[KEYSPACE] [flags]", summary: "show what the planner would do now, and why; do it",
		long: `
Asks the holder of the Tenure what it would do about a keyspace, or all, and changes nothing.
A keyspace that never evens out by itself is planned as it would be by default.

  nokv plan games
  nokv plan games --with-member m9,capacity=2,zone=b --without-member m1 --svg plan.svg
  nokv plan games --policy policy.json
  nokv plan games --apply --max-moves 50 --why "two new machines"

--policy takes settings as --settings of nokv keyspace create does, from a file. --apply begins
what is shown: all of it, or nothing if a region, a member or the settings are not as they were. --id applies a
plan that was shown within the last 10 minutes. What is begun goes on by itself, and counts as
the planner's own.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			p := &planFlags{flags: f}
			f.Func("with-member", "what if this `ID[,capacity=N][,LABEL=VALUE...]` were there; repeat for more", p.with)
			f.Func("without-member", "what if this `ID` had failed; repeat for more", func(id string) error {
				p.req.WithoutMembers = append(p.req.WithoutMembers, id)
				return nil
			})
			policy := f.String("policy", "", "what if these settings, protobuf JSON in this `file`, were laid over the keyspace's")
			most := f.Uint("max-moves", 0, "at most so many `changes` to even out")
			f.StringVar(&p.svg, "svg", "", "draw what members have before and behind it to this `file`")
			f.BoolVar(&p.apply, "apply", false, "begin what is shown")
			f.StringVar(&p.id, "id", "", "with --apply: begin the plan of this `id`, which was shown")
			history := f.Bool("history", false, "show rounds of a keyspace that began something, too")
			limit := f.Uint("limit", 20, "show at most so many `operations`, and members; in JSON 256 unless it is given")
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 1 {
					return usagef("name one keyspace, or none for all")
				}
				if len(args) == 1 {
					p.req.Keyspace = args[0]
				}
				if *most > math.MaxUint32 || *limit > math.MaxUint32 {
					return usagef("--max-moves %d, --limit %d: want less", *most, *limit)
				}
				p.req.MaxMoves, p.history = uint32(*most), *history
				p.req.Limit, p.req.MemberLimit = 256, 256
				if f.given("limit") {
					p.req.Limit, p.req.MemberLimit = uint32(*limit), uint32(*limit)
				}
				p.rows = int(*limit)
				if err := p.read(*policy); err != nil {
					return err
				}
				if err := p.check(); err != nil {
					return err
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error { return p.run(ctx, e, cl) })
			}
		},
	}
}

// planFlags are what nokv plan is asked.
type planFlags struct {
	flags          *flags
	req            coordinatorv1.PlanRequest
	svg, id        string
	apply, history bool
	rows           int
	// policy is what the file of --policy says; nil: there is none.
	policy []byte
}

// with reads ID[,capacity=N][,LABEL=VALUE...].
func (p *planFlags) with(text string) error {
	parts := strings.Split(text, ",")
	m := &coordinatorv1.PlannedMember{Id: parts[0], Labels: map[string]string{}}
	if m.Id == "" {
		return errors.New("want an id first")
	}
	for _, part := range parts[1:] {
		name, value, ok := strings.Cut(part, "=")
		switch {
		case !ok || name == "":
			return fmt.Errorf("%q: want capacity=N or LABEL=VALUE", part)
		case name == "capacity":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil || n == 0 {
				return fmt.Errorf("capacity %q: want a whole number of 1 or more", value)
			}
			m.Capacity = n
		default:
			m.Labels[name] = value
		}
	}
	p.req.WithMembers = append(p.req.WithMembers, m)
	return nil
}

// read reads --policy.
func (p *planFlags) read(file string) (err error) {
	if file == "" {
		return nil
	}
	if p.policy, err = os.ReadFile(file); err != nil {
		return usagef("--policy: %s", err)
	}
	if _, err := settings.Overlay(nil, p.policy); err != nil {
		return usagef("--policy %s: %s", file, err)
	}
	return nil
}

// lay lays --policy over the settings of the keyspace as they are.
func (p *planFlags) lay(ctx context.Context, cl *client.Client) error {
	if p.policy == nil {
		return nil
	}
	there, err := cl.GetKeyspace(ctx, p.req.GetKeyspace(), client.Strong())
	if err != nil {
		return err
	}
	p.req.Whole = true
	p.req.Settings, err = settings.Overlay(there.GetKeyspace().GetSettings(), p.policy)
	return err
}

func (p *planFlags) check() error {
	imagined := len(p.req.GetWithMembers()) > 0 || len(p.req.GetWithoutMembers()) > 0 || p.policy != nil
	switch {
	case p.policy != nil && p.req.GetKeyspace() == "":
		return usagef("--policy is that of a keyspace: name it")
	case p.apply && imagined:
		return usagef("--apply begins nothing of what is not there: register members (nokv worker), drain or fail those that are to go (nokv member), nokv keyspace update for settings; then plan again")
	case p.id != "" && !p.apply:
		return usagef("--id is for --apply")
	case p.id != "" && (p.req.GetKeyspace() != "" || p.req.GetMaxMoves() > 0 || p.svg != ""):
		return usagef("--id takes what was shown as it is: no KEYSPACE, --max-moves or --svg")
	case p.flags.given("why") && !p.apply:
		return usagef("--why is for --apply")
	case p.history && p.req.GetKeyspace() == "":
		return usagef("--history is that of a keyspace: name it")
	}
	return nil
}

// planOutput is what `nokv plan -o json` prints. The field names stay.
type planOutput struct {
	PlanID        string `json:"plan_id,omitempty"`
	NotApplicable string `json:"not_applicable,omitempty"`
	Era           uint64 `json:"era,omitempty"`
	Token         string `json:"token,omitempty"`
	// BlindMillis is for how long the holder, which is new, evens nothing out yet.
	BlindMillis    uint64                  `json:"blind_millis,omitempty"`
	Keyspaces      []plannedKeyspaceOutput `json:"keyspaces,omitempty"`
	MoreKeyspaces  uint64                  `json:"more_keyspaces,omitempty"`
	Operations     []plannedOutput         `json:"operations,omitempty"`
	MoreOperations uint64                  `json:"more_operations,omitempty"`
	Refusals       []plannedRefusalOutput  `json:"refusals,omitempty"`
	MoreRefusals   uint64                  `json:"more_refusals,omitempty"`
	// Applied is what was begun, with --apply.
	Applied *appliedOutput `json:"applied,omitempty"`
}

type plannedKeyspaceOutput struct {
	Keyspace string `json:"keyspace"`
	// By is what is compared: load or count. EvensOut: it does so by itself.
	By       string `json:"by"`
	EvensOut bool   `json:"evens_out"`
	Regions  uint64 `json:"regions"`
	// What the fullest member has, of 1,000 of its fair part.
	BeforePermille uint64  `json:"imbalance_before_permille"`
	AfterPermille  uint64  `json:"imbalance_after_permille"`
	LoadMoved      float64 `json:"load_moved"`
	// The plan is the first of Waves, which are AllChanges together, and end at SettledPermille.
	Waves           uint64                `json:"waves"`
	AllChanges      uint64                `json:"all_changes"`
	SettledPermille uint64                `json:"imbalance_settled_permille"`
	Begun           []begunOutput         `json:"begun"`
	Refused         []refusedOutput       `json:"refused"`
	Members         []plannedMemberOutput `json:"members"`
	MoreMembers     uint64                `json:"more_members,omitempty"`
	History         []roundOutput         `json:"history,omitempty"`
}

type plannedMemberOutput struct {
	Member        string  `json:"member"`
	Capacity      uint64  `json:"capacity"`
	RegionsBefore uint64  `json:"regions_before"`
	RegionsAfter  uint64  `json:"regions_after"`
	LoadBefore    float64 `json:"load_before"`
	LoadAfter     float64 `json:"load_after"`
	// Note is imagined, without, or takes_nothing.
	Note string `json:"note,omitempty"`
}

type plannedOutput struct {
	Operation string   `json:"operation"`
	Reason    string   `json:"reason"`
	Keyspace  string   `json:"keyspace"`
	Region    uint64   `json:"region"`
	StartKey  string   `json:"start_key"`
	EndKey    string   `json:"end_key"`
	Epoch     string   `json:"epoch"`
	From      string   `json:"from,omitempty"`
	To        []string `json:"to,omitempty"`
	Load      float64  `json:"load"`
	SplitKey  string   `json:"split_key,omitempty"`
	Next      uint64   `json:"next_region,omitempty"`
	// EvensOut: --apply begins it. All else is done without delay anyway.
	EvensOut bool `json:"evens_out"`
}

type plannedRefusalOutput struct {
	Why         string `json:"why"`
	Keyspace    string `json:"keyspace"`
	Region      uint64 `json:"region,omitempty"`
	Member      string `json:"member,omitempty"`
	Regions     uint64 `json:"regions"`
	AfterMillis uint64 `json:"after_millis,omitempty"`
	// Wants are labels that nobody has.
	Wants string `json:"wants,omitempty"`
}

type appliedOutput struct {
	Token      string `json:"token"`
	Operations uint64 `json:"operations"`
}

// run plans, draws, applies.
func (p *planFlags) run(ctx context.Context, e *env, cl *client.Client) error {
	out := planOutput{PlanID: p.id}
	even := 0
	if err := p.lay(ctx, cl); err != nil {
		return err
	}
	if p.id == "" {
		plan, err := cl.Plan(ctx, &p.req)
		if err != nil {
			return err
		}
		out = showPlan(plan)
		for _, k := range plan.GetKeyspaces() {
			for _, b := range k.GetBegun() {
				even += int(b.GetCount())
			}
		}
		if p.svg != "" {
			if err := os.WriteFile(p.svg, out.draw(), 0o644); err != nil {
				return err
			}
		}
	}
	var refused error
	if p.apply {
		switch {
		case out.PlanID != "":
			var done *coordinatorv1.ApplyPlanResponse
			if done, refused = cl.ApplyPlan(ctx, out.PlanID); refused == nil {
				out.Applied = &appliedOutput{showToken(done.GetToken()), done.GetOperations()}
			}
		case even > 0:
			refused = errors.New("nothing was begun: " + out.NotApplicable)
		}
	}
	if err := e.print(out, func(w *tabwriter.Writer) { p.table(w, &out) }); err != nil {
		return err
	}
	return refused
}

func units(milli uint64) float64 { return float64(milli) / 1000 }

func showPlan(plan *coordinatorv1.PlanResponse) planOutput {
	out := planOutput{
		PlanID: plan.GetPlanId(), NotApplicable: plan.GetNotApplicable(), Era: plan.GetEra(), Token: showToken(plan.GetToken()),
		BlindMillis: plan.GetBlindMillis(), MoreKeyspaces: plan.GetMoreKeyspaces(), MoreOperations: plan.GetMoreOperations(), MoreRefusals: plan.GetMoreRefusals(),
	}
	for _, k := range plan.GetKeyspaces() {
		round := showRound(&coordinatorv1.BalanceRound{ByCount: k.GetByCount(), Begun: k.GetBegun(), Refused: k.GetRefused()})
		x := plannedKeyspaceOutput{
			Keyspace: k.GetKeyspace(), By: round.By, EvensOut: k.GetEvens(), Regions: k.GetRegions(), BeforePermille: k.GetImbalanceBeforePermille(),
			AfterPermille: k.GetImbalanceAfterPermille(), LoadMoved: units(k.GetLoadMovedMilli()), Begun: round.Begun, Refused: round.Refused,
			Waves: k.GetWaves(), AllChanges: k.GetAllChanges(), SettledPermille: k.GetImbalanceSettledPermille(),
			Members: []plannedMemberOutput{}, MoreMembers: k.GetMoreMembers(),
		}
		for _, m := range k.GetMembers() {
			one := plannedMemberOutput{
				Member: m.GetMemberId(), Capacity: m.GetCapacity(), RegionsBefore: m.GetRegionsBefore(), RegionsAfter: m.GetRegionsAfter(),
				LoadBefore: units(m.GetLoadBeforeMilli()), LoadAfter: units(m.GetLoadAfterMilli()),
			}
			switch {
			case m.GetWithout():
				one.Note = "without"
			case m.GetImagined():
				one.Note = "imagined"
			case m.GetBarred():
				one.Note = "takes_nothing"
			}
			x.Members = append(x.Members, one)
		}
		for _, r := range k.GetHistory() {
			x.History = append(x.History, showRound(r))
		}
		out.Keyspaces = append(out.Keyspaces, x)
	}
	for _, o := range plan.GetOperations() {
		out.Operations = append(out.Operations, plannedOutput{
			Operation: o.GetOperation(), Reason: word(o.GetReason().String(), "OPERATION_REASON_"), Keyspace: o.GetKeyspace(), Region: o.GetRegionId(),
			StartKey: showKey(o.GetStartKey()), EndKey: showKey(o.GetEndKey()), Epoch: rooted.EpochFromProto(o.GetEpoch()).String(), From: o.GetFrom(), To: o.GetTo(),
			Load: units(o.GetLoadMilli()), SplitKey: showKey(o.GetSplitKey()), Next: o.GetNextRegionId(), EvensOut: o.GetEvens(),
		})
	}
	for _, f := range plan.GetRefusals() {
		out.Refusals = append(out.Refusals, plannedRefusalOutput{f.GetWhy(), f.GetKeyspace(), f.GetRegionId(), f.GetMemberId(), f.GetRegions(), f.GetAfterMillis(), f.GetWants()})
	}
	return out
}

func (p *planFlags) table(w *tabwriter.Writer, out *planOutput) {
	if p.id == "" {
		row(w, "KEYSPACE", "REGIONS", "BY", "FULLEST / FAIR", "TO BE DONE", "NOT DONE")
		for _, k := range out.Keyspaces {
			by := k.By
			if !k.EvensOut {
				by += ", by --apply only"
			}
			row(w, k.Keyspace, k.Regions, by, ratios(k.BeforePermille, k.AfterPermille), orDash(begunText(k.Begun)), orDash(refusedText(k.Refused)))
		}
		p.operations(w, out)
		p.explain(w, out)
		for _, k := range out.Keyspaces {
			if k.Waves > 1 {
				row(w)
				row(w, fmt.Sprintf("# %s: this is the first wave of %d, %d changes in all; the fullest member then has %.2f of its fair part", k.Keyspace, k.Waves, k.AllChanges, float64(k.SettledPermille)/1000))
			}
			p.members(w, &k)
			if p.history {
				row(w)
				roundsTable(w, k.History...)
			}
		}
		row(w)
	}
	for _, n := range []struct {
		more uint64
		what string
	}{{out.MoreKeyspaces, "keyspaces"}, {uint64(max(len(out.Operations)-p.rows, 0)) + out.MoreOperations, "operations"}} {
		if n.more > 0 {
			row(w, fmt.Sprintf("# %d more %s", n.more, n.what))
		}
	}
	switch {
	case out.Applied != nil:
		row(w, fmt.Sprintf("# begun: %d changes, at %s; nokv events and nokv plan say how far they are", out.Applied.Operations, out.Applied.Token))
	case out.BlindMillis > 0:
		row(w, fmt.Sprintf("# the holder is new: it evens nothing out before it has heard all members, or %s have passed", (time.Duration(out.BlindMillis)*time.Millisecond).Round(time.Second)))
	case out.PlanID != "" && !p.apply:
		row(w, "# nothing was changed; within 10 minutes nokv plan --apply --id "+out.PlanID+" begins it")
	case out.NotApplicable != "":
		row(w, "# nothing was changed; "+out.NotApplicable)
	}
}

// explain says what the words stand for that say why something is not done.
func (p *planFlags) explain(w *tabwriter.Writer, out *planOutput) {
	var shown []string
	for _, k := range out.Keyspaces {
		for _, f := range k.Refused {
			shown = append(shown, f.Why)
		}
	}
	for _, f := range out.Refusals[:min(len(out.Refusals), p.rows)] {
		shown = append(shown, f.Why)
	}
	if len(shown) > 0 {
		row(w)
		wordsOf(w, shown)
	}
}

func ratios(before, after uint64) string {
	return fmt.Sprintf("%.2f -> %.2f", float64(before)/1000, float64(after)/1000)
}

func begunText(begun []begunOutput) string {
	var all []string
	for _, b := range begun {
		all = append(all, fmt.Sprintf("%d %s: %s", b.Count, b.Operation, b.Reason))
	}
	return strings.Join(all, ", ")
}

func refusedText(refused []refusedOutput) string {
	var all []string
	for _, f := range refused {
		all = append(all, fmt.Sprintf("%d %s", f.Count, whyText(f.Why, f.Wants)))
	}
	return strings.Join(all, ", ")
}

func whyText(why, wants string) string {
	if wants == "" {
		return why
	}
	return why + " (" + wants + ")"
}

// clipped is a key in a table.
func clipped(key string) string {
	if r := []rune(key); len(r) > 32 {
		return string(r[:31]) + "…"
	}
	return key
}

func (p *planFlags) operations(w *tabwriter.Writer, out *planOutput) {
	if len(out.Operations) > 0 {
		row(w)
		row(w, "OPERATION", "WHY", "REGION", "KEYS", "EPOCH", "FROM", "TO", "LOAD")
		for _, o := range out.Operations[:min(len(out.Operations), p.rows)] {
			to := strings.Join(o.To, ",")
			if o.SplitKey != "" {
				to = "before " + o.SplitKey
			}
			if o.Next != 0 {
				to = fmt.Sprintf("with region %d", o.Next)
			}
			row(w, o.Operation, o.Reason, o.Region, "["+clipped(o.StartKey)+", "+clipped(o.EndKey)+")", o.Epoch, orDash(o.From), orDash(to), evenness.Number(o.Load))
		}
	}
	if len(out.Refusals) > 0 {
		row(w)
		row(w, "NOT DONE", "KEYSPACE", "REGION", "MEMBER", "REGIONS", "AGAIN IN")
		for _, f := range out.Refusals[:min(len(out.Refusals), p.rows)] {
			again := "-"
			if f.AfterMillis > 0 {
				again = (time.Duration(f.AfterMillis) * time.Millisecond).Round(time.Second).String()
			}
			region := "-"
			if f.Region != 0 {
				region = strconv.FormatUint(f.Region, 10)
			}
			row(w, whyText(f.Why, f.Wants), f.Keyspace, region, orDash(f.Member), f.Regions, again)
		}
	}
}

// barCells is how long the bar of the fullest member is.
const barCells = 24

func (p *planFlags) members(w *tabwriter.Writer, k *plannedKeyspaceOutput) {
	if len(k.Members) == 0 {
		return
	}
	members := slices.Clone(k.Members)
	slices.SortFunc(members, func(a, b plannedMemberOutput) int { return strings.Compare(a.Member, b.Member) })
	most := 0.0
	for _, m := range members {
		most = max(most, k.has(m, false), k.has(m, true))
	}
	row(w)
	row(w, "MEMBER OF "+k.Keyspace, "CAPACITY", "REGIONS", "LOAD", "BEFORE", "AFTER", "")
	for _, m := range members[:min(len(members), p.rows)] {
		row(w, m.Member, m.Capacity, fmt.Sprintf("%d -> %d", m.RegionsBefore, m.RegionsAfter), evenness.Number(m.LoadBefore)+" -> "+evenness.Number(m.LoadAfter),
			bar(k.has(m, false), most), bar(k.has(m, true), most), strings.ReplaceAll(m.Note, "_", " "))
	}
	if more := uint64(max(len(members)-p.rows, 0)) + k.MoreMembers; more > 0 {
		row(w, fmt.Sprintf("# %d more members", more))
	}
}

// has is what a member has, of what is compared.
func (k *plannedKeyspaceOutput) has(m plannedMemberOutput, after bool) float64 {
	switch {
	case k.By == "count" && after:
		return float64(m.RegionsAfter)
	case k.By == "count":
		return float64(m.RegionsBefore)
	case after:
		return m.LoadAfter
	default:
		return m.LoadBefore
	}
}

func bar(v, most float64) string {
	n := 0
	if most > 0 {
		n = int(math.Round(v / most * barCells))
	}
	return strings.Repeat("█", n) + strings.Repeat("·", barCells-n)
}

// draw draws the keyspace that the plan changes most, or all that there is of one.
func (o *planOutput) draw() []byte {
	if len(o.Keyspaces) == 0 {
		return evenness.Bars("a plan of nothing", "there is no assigned keyspace that may be read", "regions", nil)
	}
	begun := func(k plannedKeyspaceOutput) (n uint64) {
		for _, b := range k.Begun {
			n += b.Count
		}
		return n
	}
	k := slices.MaxFunc(o.Keyspaces, func(a, b plannedKeyspaceOutput) int { return int(begun(a)) - int(begun(b)) })
	unit := "load"
	if k.By == "count" {
		unit = "regions"
	}
	var bars []evenness.Bar
	members := slices.Clone(k.Members)
	slices.SortFunc(members, func(a, b plannedMemberOutput) int { return strings.Compare(a.Member, b.Member) })
	for _, m := range members {
		bars = append(bars, evenness.Bar{
			Name: m.Member, Before: k.has(m, false), After: k.has(m, true), Capacity: float64(m.Capacity), Note: strings.ReplaceAll(m.Note, "_", " "),
		})
	}
	subtitle := fmt.Sprintf("fullest / fair %s", strings.ReplaceAll(ratios(k.BeforePermille, k.AfterPermille), "->", "→"))
	if text := begunText(k.Begun); text != "" {
		subtitle += "; " + text
	}
	if len(o.Keyspaces) > 1 {
		subtitle += fmt.Sprintf("; one of %d keyspaces", len(o.Keyspaces))
	}
	return evenness.Bars("plan of "+k.Keyspace+" at "+o.Token, subtitle, unit, bars)
}
