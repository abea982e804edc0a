package simulator

import (
	"strconv"
	"time"
)

type userTask struct {
	UserTask
	in     *instance
	el     *element
	action string
	gone   bool
}

func (el *element) activateUserTask(b batch) {
	e := el.in.e
	t := &userTask{in: el.in, el: el}
	t.UserTask = UserTask{
		Key: el.in.p.nextKey(), Instance: &el.in.Instance, Element: &el.Element, Process: el.in.def.Process, ElementID: el.ID,
		State: TaskCreated, Groups: pick(&e.random, []string{`["back-office"]`, `["claims","auditors"]`, `[]`}), CreatedAt: b.ms(),
	}
	if e.random.chance(500) {
		t.DueDate = date(b.ms() + 86_400_000)
	}
	el.task = t
	if truth := e.cfg.Truth; truth != nil {
		truth.UserTasks = append(truth.UserTasks, &t.UserTask)
	}
	if t.Key%7 == 3 { // assigned by the model; before Camunda 8.7 in CREATED, without ASSIGNED
		t.Assignee, t.AssignedAt = people()[0], b.ms()
	}
	t.write(b, "CREATING")
	t.write(b, "CREATED")
	if e.random.chance(400) {
		t.assign(b, "ASSIGNING", pick(&e.random, people()))
	}
	el.activated(b)
	el.after(e.between(10*time.Second, 4*time.Minute), func() {
		b := t.batch("CLAIM")
		t.assign(b, "CLAIMING", pick(&e.random, people()))
		if e.random.chance(30) { // unassigned at the end of the day
			t.unassign(t.batch("ASSIGN"))
			e.left(t.in.top())
			return
		}
		el.after(e.between(10*time.Second, 20*time.Minute), t.complete)
	})
}

func (t *userTask) write(b batch, intent string) {
	t.in.event(b, "USER_TASK", intent, t.Key, (*userTaskValue)(t))
}

func (t *userTask) batch(intent string) batch {
	return t.in.p.batch("USER_TASK", intent, t.Key, (*userTaskValue)(t))
}

func (t *userTask) assign(b batch, first, to string) {
	t.action = "assign"
	t.Assignee = to
	t.write(b, first)
	t.AssignedAt = b.ms()
	t.write(b, "ASSIGNED")
}

func (t *userTask) unassign(b batch) {
	t.action, t.Assignee = "unassign", ""
	t.write(b, "ASSIGNING")
	t.write(b, "ASSIGNED")
}

func (t *userTask) complete() {
	b := t.batch("COMPLETE")
	t.action = "complete"
	t.write(b, "COMPLETING")
	t.State, t.CompletedAt = TaskCompleted, b.ms()
	t.write(b, "COMPLETED")
	t.gone = true
	t.el.task = nil
	t.el.triggered(b, t.el.node, t.in.e.result())
	t.el.complete(b)
}

func (t *userTask) cancel(b batch) {
	if t.gone {
		return
	}
	t.write(b, "CANCELING")
	t.State, t.CanceledAt = TaskCanceled, b.ms()
	t.write(b, "CANCELED")
	t.gone = true
}

type waitingTimer struct {
	Timer
	el *element
}

func (el *element) activateTimer(b batch) {
	e := el.in.e
	wait := 3 * time.Minute
	if el.node.wait == "PT10M" {
		wait = 10 * time.Minute
	}
	t := &waitingTimer{el: el}
	t.Timer = Timer{
		Key: el.in.p.nextKey(), Instance: &el.in.Instance, Element: &el.Element, CreatedAt: b.ms(),
		DueAt: b.ms() + int64(float64(wait.Milliseconds())/e.cfg.Haste),
	}
	el.timer = t
	if truth := e.cfg.Truth; truth != nil {
		truth.Timers = append(truth.Timers, &t.Timer)
	}
	el.in.event(b, "TIMER", "CREATED", t.Key, (*timerValue)(t))
	el.activated(b)
	el.after(wait+time.Millisecond, func() {
		b := el.in.p.batch("TIMER", "TRIGGER", t.Key, (*timerValue)(t))
		t.TriggeredAt = b.ms()
		el.in.event(b, "TIMER", "TRIGGERED", t.Key, (*timerValue)(t))
		el.timer = nil
		el.triggered(b, el.node, "")
		el.complete(b)
	})
}

func (t *waitingTimer) cancel(b batch) {
	t.CanceledAt = b.ms()
	t.el.in.event(b, "TIMER", "CANCELED", t.Key, (*timerValue)(t))
}

// subscription is the wait of an element for a message, which arrives on the partition of its correlation key.
type subscription struct {
	MessageWait // the instance's side
	el          *element
	there       *partition // the messages' side
	thereKey    int64
	message     int64
	gone        bool
}

func (el *element) activateMessage(b batch) {
	e, p := el.in.e, el.in.p
	s := &subscription{el: el, there: pick(&e.random, e.partitions), message: -1, thereKey: -1}
	s.MessageWait = MessageWait{
		Key: p.nextKey(), Instance: &el.in.Instance, Element: &el.Element, Process: el.in.def.Process, Name: el.node.does,
		Correlation: "order-" + strconv.FormatInt(el.in.Key&(1<<keyBits-1), 10), CreatedAt: b.ms(),
	}
	el.message = s
	if truth := e.cfg.Truth; truth != nil {
		truth.Waits = append(truth.Waits, &s.MessageWait)
	}
	el.in.event(b, "PROCESS_MESSAGE_SUBSCRIPTION", "CREATING", s.Key, (*instanceSubscriptionValue)(s))
	el.activated(b)
	e.at(int64(time.Millisecond), func() {
		b := s.there.batch("MESSAGE_SUBSCRIPTION", "CREATE", -1, (*subscriptionValue)(s))
		s.thereKey = s.there.nextKey()
		b.event("MESSAGE_SUBSCRIPTION", "CREATED", s.thereKey, (*subscriptionValue)(s))
	})
	e.at(int64(2*time.Millisecond), func() {
		if s.gone {
			return
		}
		b := p.batch("PROCESS_MESSAGE_SUBSCRIPTION", "CREATE", -1, (*instanceSubscriptionValue)(s))
		el.in.event(b, "PROCESS_MESSAGE_SUBSCRIPTION", "CREATED", s.Key, (*instanceSubscriptionValue)(s))
	})
	el.after(e.between(time.Second, 2*time.Minute), s.publish)
}

// publish publishes the message, which matches its subscription.
func (s *subscription) publish() {
	e, p := s.el.in.e, s.el.in.p
	s.message = s.there.nextKey()
	m := &messageValue{s, e.ms() + 3_600_000}
	b := s.there.batch("MESSAGE", "PUBLISH", -1, m)
	b.event("MESSAGE", "PUBLISHED", s.message, m)
	b.event("MESSAGE_SUBSCRIPTION", "CORRELATING", s.thereKey, (*subscriptionValue)(s))
	e.at(int64(time.Millisecond), func() {
		if s.gone {
			return
		}
		b := p.batch("PROCESS_MESSAGE_SUBSCRIPTION", "CORRELATE", -1, (*instanceSubscriptionValue)(s))
		s.CorrelatedAt = b.ms()
		s.el.in.event(b, "PROCESS_MESSAGE_SUBSCRIPTION", "CORRELATED", s.Key, (*instanceSubscriptionValue)(s))
		s.gone = true
		s.el.message = nil
		s.el.triggered(b, s.el.node, e.result())
		s.el.complete(b)
		e.at(int64(time.Millisecond), func() {
			b := s.there.batch("MESSAGE_SUBSCRIPTION", "CORRELATE", -1, (*subscriptionValue)(s))
			b.event("MESSAGE_SUBSCRIPTION", "CORRELATED", s.thereKey, (*subscriptionValue)(s))
		})
	})
	e.after(time.Hour, func() {
		b := s.there.batch("MESSAGE", "EXPIRE", s.message, m)
		b.event("MESSAGE", "EXPIRED", s.message, m)
	})
}

// cancel closes the subscription on both partitions; its last records follow the end of the instance.
func (s *subscription) cancel(b batch) {
	if s.gone {
		return
	}
	s.gone = true
	e, p := s.el.in.e, s.el.in.p
	s.el.in.event(b, "PROCESS_MESSAGE_SUBSCRIPTION", "DELETING", s.Key, (*instanceSubscriptionValue)(s))
	e.at(int64(2*time.Millisecond), func() {
		b := s.there.batch("MESSAGE_SUBSCRIPTION", "DELETE", -1, (*subscriptionValue)(s))
		b.event("MESSAGE_SUBSCRIPTION", "DELETED", s.thereKey, (*subscriptionValue)(s))
	})
	e.at(int64(3*time.Millisecond), func() {
		b := p.batch("PROCESS_MESSAGE_SUBSCRIPTION", "DELETE", -1, (*instanceSubscriptionValue)(s))
		s.DeletedAt = b.ms()
		s.el.in.event(b, "PROCESS_MESSAGE_SUBSCRIPTION", "DELETED", s.Key, (*instanceSubscriptionValue)(s))
	})
}
