package state

import (
	"cmp"
	"net/url"
	"strconv"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// MaxHookMillis bounds how long a hook has to answer: regions without owners wait for it.
const MaxHookMillis = 60_000

// ScalingSignal is that of a drain because a keyspace wants one member fewer; the keyspace's
// name comes behind it.
const ScalingSignal = "scaled_down"

// ScalingOf is when a keyspace wants more members or fewer, with what counts where nothing is
// set.
func ScalingOf(s *rootv1.KeyspaceSettings) *rootv1.Scaling {
	x := s.GetScaling()
	least := cmp.Or(x.GetMinMembers(), 2)
	return &rootv1.Scaling{
		Enabled: x.GetEnabled(), UpPermille: cmp.Or(x.GetUpPermille(), 800), DownPermille: cmp.Or(x.GetDownPermille(), 300),
		SpacingMillis: cmp.Or(x.GetSpacingMillis(), 120_000), MinMembers: least, MaxMembers: cmp.Or(x.GetMaxMembers(), max(least, 10)),
		HookUrl: x.GetHookUrl(), HookTimeoutMillis: cmp.Or(x.GetHookTimeoutMillis(), DefaultHookTimeoutMillis),
	}
}

// checkScaling refuses wishes that contradict each other, and those for what is not planned.
func checkScaling(s *rootv1.KeyspaceSettings) *rootv1.ErrorDetail {
	x := s.GetScaling()
	if x == nil {
		return nil
	}
	all := ScalingOf(s)
	switch {
	case all.GetUpPermille() > 1000:
		return invalid("scaling-up-permille is %d, at most 1000, which is full, is allowed", all.GetUpPermille())
	case all.GetDownPermille() >= all.GetUpPermille():
		return invalid("scaling-down-permille is %d and scaling-up-permille %d: members would come and go; make scaling-down-permille less", all.GetDownPermille(), all.GetUpPermille())
	case all.GetMinMembers() > MaxMembers:
		return invalid("scaling-min-members is %d, a cluster has at most %d", all.GetMinMembers(), MaxMembers)
	case all.GetMinMembers() > all.GetMaxMembers():
		return invalid("scaling-min-members is %d, above scaling-max-members %d", all.GetMinMembers(), all.GetMaxMembers())
	case all.GetMaxMembers() > MaxMembers:
		return invalid("scaling-max-members is %d, a cluster has at most %d", all.GetMaxMembers(), MaxMembers)
	case x.GetEnabled() && s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED:
		return invalid("scaling-enabled is for keyspaces with placement assigned: members of others say themselves what they own")
	}
	return first(checkText("scaling-hook-url", x.GetHookUrl(), MaxAddressBytes), checkURL("scaling-hook-url", x.GetHookUrl()),
		checkHookTime("scaling-hook-timeout", x.GetHookTimeoutMillis()), checkMillis("scaling-spacing", x.GetSpacingMillis()))
}

// checkHook refuses an address that no request can be made to, a time that is too long to wait,
// and a hook that falls back on itself.
func checkHook(s *rootv1.KeyspaceSettings) *rootv1.ErrorDetail {
	p := s.GetPolicy()
	if p.GetHookFallback() == rootv1.Strategy_STRATEGY_HOOK {
		return invalid("policy-hook-fallback is what counts while the hook does not: choose another strategy")
	}
	return first(checkURL("policy-hook-url", p.GetHookUrl()), checkHookTime("policy-hook-timeout", p.GetHookTimeoutMillis()))
}

func checkHookTime(what string, millis uint64) *rootv1.ErrorDetail {
	if millis > MaxHookMillis {
		return invalid("%s is %d ms, at most %d ms are allowed: what it is asked about waits so long", what, millis, uint64(MaxHookMillis))
	}
	return nil
}

func checkURL(what, text string) *rootv1.ErrorDetail {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" {
		if port := u.Port(); port == "" {
			return nil
		} else if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
			return nil
		}
	}
	return invalid("%s is %q: want one such as https://10.0.0.1:8080/place", what, clip(text))
}
