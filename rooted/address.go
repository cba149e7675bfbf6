package rooted

import (
	"fmt"
	"net"
	"net/netip"
)

// probeWayOut is what to do instead of what CheckProbeAddress refuses.
const probeWayOut = "register the IP address and port that the member's own listener is bound to, such as 10.0.0.7:7001 or [fd00::7]:7001, or no probe address: then its death is known by its silence"

// CheckProbeAddress refuses a probe address at which a refused connection would not prove that
// the process is gone, because it may be another socket's: a name, which may stand for several; all
// addresses of a machine; an address that each machine or each network has anew. address is where
// callers reach the member: loopback is specific only if they are on its machine too. An empty
// probe address is fine: nothing is proved by it.
func CheckProbeAddress(probe, address string) error {
	if probe == "" {
		return nil
	}
	at, err := netip.ParseAddrPort(probe)
	ip := at.Addr().Unmap()
	switch {
	case err != nil || at.Port() == 0:
		return fmt.Errorf("the probe address %q is not an IP address and a port: %s", probe, probeWayOut)
	case ip.IsUnspecified() || ip.IsMulticast():
		return fmt.Errorf("the probe address %s is not the address of one socket: %s", probe, probeWayOut)
	case ip.Zone() != "" || ip.IsLinkLocalUnicast():
		return fmt.Errorf("the probe address %s is another machine's on another network: %s", probe, probeWayOut)
	case ip.IsLoopback() && !onThisMachine(address):
		return fmt.Errorf("the probe address %s is each machine's own, but callers reach the member at %q: %s", probe, address, probeWayOut)
	}
	return nil
}

// onThisMachine says whether an address is reached from its own machine only.
func onThisMachine(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip, _ := netip.ParseAddr(host)
	return err == nil && (host == "localhost" || ip.Unmap().IsLoopback())
}
