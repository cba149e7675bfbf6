package sidecar

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/member"
)

// Config says what a sidecar runs and how it asks it. Every duration but Hang must be more
// than 0.
type Config struct {
	// Command is what to run; empty: the process runs already, and is not started or ended.
	Command        []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// App is where the process is asked, http://HOST:PORT; empty: at the port of the member's
	// address on loopback. With Poll it asks instead.
	App  string
	Poll bool
	// Serve is the address at which callers come with certificates, those of Member.TLS: their
	// requests are passed on to App. Empty: the process itself takes them.
	Serve string
	// Control is the address of the port that the process asks, and Token what guards it;
	// empty: one that is made for the Command.
	Control, Token string
	// Anywhere: App and Control need not be on loopback.
	Anywhere bool

	// Ready bounds the time until the process answers.
	Ready time.Duration
	// Hang is how long it may answer nothing before it is ended; 0: any time.
	Hang time.Duration
	// Drain is the time that others have to take its regions when it is to end, and Grace the
	// time that it has then.
	Drain, Grace time.Duration
	// Reach: its address is dialled before the member joins.
	Reach bool

	// Member is who it is. Its HandlerTimeout is when a call is late.
	Member member.Config
	Logger hclog.Logger
}

// How often it is looked at: until it is ready, and whether it lives.
const (
	readyEvery = 50 * time.Millisecond
	watchEvery = 200 * time.Millisecond
	// undoEvery is the pause between two tries to undo an acquisition.
	undoEvery = 250 * time.Millisecond
	// tellTime bounds drain, which asks for nothing.
	tellTime = 2 * time.Second
	// farewell bounds the end of a member whose process is dead.
	farewell = 3 * time.Second
	// maxConnections is how many the port takes.
	maxConnections = 1024
)

// sidecar is one that runs.
type sidecar struct {
	cfg     Config
	log     hclog.Logger
	process *process // nil: it is not ours
	base    *url.URL // where it listens
	app     *app     // nil: it polls
	polls   *polls
	handler *handler
	member  *member.Member
	// died ends what waits for the process.
	died context.CancelFunc
	// lost says that the process hangs, or is not ours and not to be found. Of one.
	lost chan error
}

// errHangs is a process that answers nothing, errClosed one whose port is closed: it may be
// finishing requests that it has, and errKeeps one that is to end and keeps what it has.
var (
	errHangs  = errors.New("it answers nothing")
	errClosed = errors.New("nobody listens at its port any more")
	errKeeps  = errors.New("it has not released its regions in time (3/4 of --timeout)")
)

// Run runs the command, or finds the process that runs, makes it a member, and returns when it
// has ended: nil, *Ended or what went wrong. When ctx ends its regions are moved first.
func Run(ctx context.Context, cfg Config) error {
	s := &sidecar{cfg: cfg, log: cfg.Logger, lost: make(chan error, 1)}
	if s.cfg.Token == "" {
		s.cfg.Token = rand.Text()
	}
	if err := s.findApp(); err != nil {
		return err
	}
	life, died := context.WithCancel(context.WithoutCancel(ctx))
	defer died()
	s.died = died
	s.handler = &handler{caller: s.caller(), life: life, pause: undoEvery, logger: s.log}
	s.handler.calls.Store(firstCall())
	s.cfg.Member.Listen = s.listenProbe
	var err error
	if s.member, err = member.New(s.cfg.Member); err != nil {
		return err
	}
	lis, err := net.Listen("tcp", s.cfg.Control)
	if err != nil {
		return fmt.Errorf("listen for the process: %w", err)
	}
	server := &http.Server{
		Handler: newControl(s.member, s.cfg.Token, s.polls), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 2 * maxWait,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, BaseContext: func(net.Listener) context.Context { return life },
		ErrorLog: s.log.Named("http").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	defer died() // before what waits for it is joined
	defer server.Close()
	beside.Go(func() { _ = server.Serve(listen.Limit(lis, maxConnections)) })
	if cfg.Serve != "" {
		end, err := s.listenForCallers()
		if err != nil {
			return err
		}
		defer end()
	}
	url := "http://" + lis.Addr().String()
	if len(cfg.Command) > 0 {
		env := []string{"NOKV_SIDECAR_URL=" + url, "NOKV_SIDECAR_TOKEN=" + s.cfg.Token, "NOKV_MEMBER_ID=" + cfg.Member.ID, "NOKV_MEMBER_ADDRESS=" + cfg.Member.Address}
		if s.process, err = start(cfg.Command, env, cfg.Stdin, cfg.Stdout, cfg.Stderr); err != nil {
			return err
		}
		defer s.process.kill() // whatever happens, it does not outlive this
		defer s.passSignals()()
	}
	s.log.Info("sidecar starts", "control", url, "command", len(cfg.Command) > 0)
	if err := s.awaitReady(ctx); err != nil {
		return err
	}
	return s.live(ctx, life, &beside)
}

// findApp says where the process listens, and how it is asked.
func (s *sidecar) findApp() error {
	where := s.cfg.App
	if where == "" {
		_, port, err := net.SplitHostPort(s.cfg.Member.Address)
		if err != nil {
			return fmt.Errorf("address %q: %w", s.cfg.Member.Address, err)
		}
		where = net.JoinHostPort("127.0.0.1", port)
	}
	var err error
	if s.base, err = checkBase(where, s.cfg.Anywhere); err != nil {
		return fmt.Errorf("the address of the process: %w", err)
	}
	if s.cfg.Poll {
		s.polls = newPolls(time.Now)
	} else {
		s.app = newApp(s.base, s.cfg.Token)
	}
	return nil
}

// CheckApp judges Config.App.
func CheckApp(text string, anywhere bool) error {
	_, err := checkBase(text, anywhere)
	return err
}

func (s *sidecar) caller() caller {
	if s.polls != nil {
		return s.polls
	}
	return s.app
}

// gone is closed when our process has ended; nil: it is not ours.
func (s *sidecar) gone() <-chan struct{} {
	if s.process == nil {
		return nil
	}
	return s.process.ended
}

// passSignals passes on what is not for the sidecar.
func (s *sidecar) passSignals() (stop func()) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case got := <-signals:
				s.process.signal(got)
			case <-s.process.ended:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		s.process.kill()
		<-done
	}
}

// awaitReady waits until the process answers and its address takes connections.
func (s *sidecar) awaitReady(ctx context.Context) error {
	over, cancel := context.WithTimeout(ctx, s.cfg.Ready)
	defer cancel()
	var err error
	for {
		look := s.ready(over)
		if look == nil {
			return nil
		}
		if end, _ := over.Deadline(); err == nil || time.Now().Before(end) {
			err = look // what the end of the wait cuts off says nothing
		}
		select {
		case <-s.gone():
			if err := s.process.outcome(); err != nil {
				return err
			}
			return &Ended{Code: 1, Why: "the command ended with exit status 0 before it was ready: it has to stay, and not in the background"}
		case <-over.Done():
			if ctx.Err() != nil { // it is asked to end, and has nothing
				s.process.end(s.cfg.Grace)
				if s.process != nil {
					return s.process.outcome()
				}
				return nil
			}
			// Not wrapped: that the process does not answer does not mean that no coordinator does.
			return fmt.Errorf("the process was not ready within %v: %v", s.cfg.Ready, err)
		case <-time.After(readyEvery):
		}
	}
}

func (s *sidecar) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var err error
	if s.polls != nil {
		ctx, cancel := context.WithTimeout(ctx, readyEvery)
		defer cancel()
		err = s.polls.ready(ctx)
	} else {
		err = s.app.ready(ctx)
	}
	if err != nil || !s.cfg.Reach {
		return err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.cfg.Member.Address)
	if err != nil {
		return fmt.Errorf("nobody can be reached at --address %s, which callers are told: %w", s.cfg.Member.Address, err)
	}
	return conn.Close()
}

// live runs the member until something ends.
func (s *sidecar) live(ctx, life context.Context, beside *sync.WaitGroup) error {
	running, stop := context.WithCancel(life)
	defer stop()
	ran := make(chan error, 1)
	beside.Go(func() { s.watch(running) })
	go func() { ran <- s.member.Run(running, s.handler) }() // joined by ran, but for a process that cannot be ended
	select {
	case <-s.gone():
		return s.over(stop, ran)
	case err := <-s.lost:
		return s.loses(err, stop, ran)
	case err := <-ran:
		s.process.end(s.cfg.Grace)
		return fmt.Errorf("member %s: %w", s.cfg.Member.ID, err)
	case <-ctx.Done():
		return s.leave(life, stop, ran)
	}
}

// over ends the member of a process that is dead.
func (s *sidecar) over(stop func(), ran <-chan error) error {
	why, err := "the process ended with exit status 0", s.process.outcome()
	if err != nil {
		why = err.Error()
	} else { // what starts this may say nothing of a status of 0
		s.log.Warn("the process has ended, and so does its sidecar", "why", why)
	}
	s.died()
	s.member.Abort(why)
	stop()
	select {
	case <-ran:
	case <-time.After(farewell):
	}
	return err
}

// loses ends the member of a process that hangs, or of one beside that is not to be found. What is
// not ours may serve: then nothing is said, and its silence is what counts.
func (s *sidecar) loses(why error, stop func(), ran <-chan error) error {
	if s.process == nil {
		return fmt.Errorf("%w: this ends without a word, because it may still serve: end it, and start both again", why)
	}
	s.log.Error("the process is ended", "why", why)
	s.process.kill()
	return s.over(stop, ran)
}

// leave gives the regions away, has the rest released, and ends the process.
func (s *sidecar) leave(life context.Context, stop func(), ran <-chan error) error {
	const why = "the sidecar was asked to end"
	drained := make(chan struct{})
	go func() { // ends with Run, in time
		defer close(drained)
		s.handler.drain(tellTime, s.cfg.Drain, why)
		ctx, cancel := context.WithTimeout(life, s.cfg.Drain)
		defer cancel()
		if err := s.member.Drain(ctx, why); err != nil {
			s.log.Warn("not drained", "err", err)
		}
	}()
	// A member that cannot release says in the end that it is gone. Before that the process
	// has to be.
	late := make(<-chan time.Time)
	for {
		select {
		case <-drained:
			drained = nil
			stop()
			late = time.After(s.cfg.Member.HandlerTimeout * 3 / 4)
		case <-s.gone():
			return s.over(stop, ran)
		case err := <-s.lost:
			return s.loses(err, stop, ran)
		case <-late:
			return s.loses(errKeeps, stop, ran)
		case err := <-ran:
			s.process.end(s.cfg.Grace)
			if err == nil && s.process != nil {
				err = s.process.outcome()
			}
			return err
		}
	}
}

// watch looks whether the process lives.
func (s *sidecar) watch(ctx context.Context) {
	if s.cfg.Hang == 0 && s.process != nil {
		return
	}
	every := watchEvery
	if s.process != nil { // its end is seen without
		every = min(max(s.cfg.Hang/4, every), time.Second)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	refused, silent, last := 0, time.Duration(0), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		most := max(s.cfg.Hang/4, dialTime)
		within, cancel := context.WithTimeout(ctx, most)
		err := s.handler.caller.answers(within)
		cancel()
		// What took longer than it can is a time in which this process was stopped: it has not
		// listened then.
		now := time.Now()
		silent, last = silent+min(now.Sub(last), every+most), now
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			refused, silent = 0, 0
			continue
		case errors.Is(err, syscall.ECONNREFUSED):
			refused++
		default:
			refused = 0
		}
		switch {
		case s.process == nil && refused >= 2:
			s.lost <- fmt.Errorf("%s: %w", s.app.base.Host, errClosed)
			return
		case s.process == nil && refused > 0: // the next look tells a closed port from one that hangs
		case s.cfg.Hang > 0 && silent >= s.cfg.Hang:
			s.lost <- fmt.Errorf("%w for %v (--hang): %w", errHangs, silent.Round(time.Millisecond), err)
			return
		}
	}
}

// listenProbe makes a listener that is closed behind the process, if that may still serve: who
// finds it closed has proof that nothing does.
func (s *sidecar) listenProbe(ctx context.Context, network, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &behind{l, s}, nil
}

type behind struct {
	net.Listener
	sidecar *sidecar
}

// Close implements net.Listener.
func (b *behind) Close() error {
	if b.sidecar.member.Status().Holding > 0 {
		b.sidecar.process.kill()
	}
	return b.Listener.Close()
}
