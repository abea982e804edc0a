package simulator

// process is a model with its deployed versions. A migration target has the same elements, with ids by rename.
type process struct {
	id       string
	elements []node
	versions []*definition
	target   *process // migration target of its instances, with other ids; nil: its newest version
	rename   map[string]string
	callable bool // only started by call activities
}

type definition struct {
	Process
	process *process
}

// name returns the id of an element in this definition.
func (d *definition) name(n *node) string {
	if other, ok := d.process.rename[n.id]; ok {
		return other
	}
	return n.id
}

// node is one element of a process. Elements of a list follow each other.
type node struct {
	kind     kind
	id       string
	does     string // job type, message name, form, or decision
	loop     loop
	boundary string   // id of the error event at its boundary; the flow continues there as after the element
	children []node   // of a sub-process
	branches [][]node // of a forking gateway; its join is named id + "_join"
	wait     string   // cycle or duration of a timer
	mapping  bool     // its input mapping may fail
}

type kind int

const (
	startEvent kind = iota
	service
	user
	timer
	message
	choice // exclusive gateway: the next element is taken or skipped
	fork   // parallel gateway, with its join
	subProcess
	call
	endEvent
	wholeProcess
	boundaryEvent
	join
	rule // business rule task that calls a decision
)

type loop int

const (
	once loop = iota
	sequential
	parallel
)

// bpmn returns the element type and event type in records.
func (k kind) bpmn() (elementType, eventType string) {
	switch k {
	case startEvent:
		return "START_EVENT", "NONE"
	case service:
		return "SERVICE_TASK", "UNSPECIFIED"
	case user:
		return "USER_TASK", "UNSPECIFIED"
	case timer:
		return "INTERMEDIATE_CATCH_EVENT", "TIMER"
	case message:
		return "INTERMEDIATE_CATCH_EVENT", "MESSAGE"
	case choice:
		return "EXCLUSIVE_GATEWAY", "UNSPECIFIED"
	case fork, join:
		return "PARALLEL_GATEWAY", "UNSPECIFIED"
	case subProcess:
		return "SUB_PROCESS", "UNSPECIFIED"
	case call:
		return "CALL_ACTIVITY", "UNSPECIFIED"
	case endEvent:
		return "END_EVENT", "NONE"
	case rule:
		return "BUSINESS_RULE_TASK", "UNSPECIFIED"
	case boundaryEvent:
		return "BOUNDARY_EVENT", "ERROR"
	default:
		return "PROCESS", "UNSPECIFIED"
	}
}

const (
	bodyType = "MULTI_INSTANCE_BODY"
	flowType = "SEQUENCE_FLOW"
)

// catalog returns the processes.
func catalog() []*process {
	order := &process{id: "order", elements: []node{
		{kind: startEvent, id: "order_placed"},
		{kind: service, id: "reserve", does: "stock.reserve", mapping: true},
		{kind: choice, id: "in_stock"},
		{kind: service, id: "back_order", does: "stock.order"},
		{kind: rule, id: "discount", does: "discount"},
		{kind: service, id: "charge", does: "payment.charge", boundary: "card_refused"},
		{kind: message, id: "paid", does: "payment-received"},
		{kind: fork, id: "ready", branches: [][]node{
			{{kind: service, id: "pick", does: "stock.pick"}, {kind: service, id: "pack", does: "stock.pack"}},
			{{kind: service, id: "bill", does: "billing.send"}},
		}},
		{kind: call, id: "ship", does: "shipment"},
		{kind: endEvent, id: "order_done"},
	}}
	europe := &process{id: "order-eu", elements: order.elements, rename: map[string]string{
		"charge": "charge_sepa", "reserve": "reserve_eu", "pick": "pick_eu", "pack": "pack_eu", "bill": "bill_eu", "back_order": "back_order_eu", "discount": "discount_eu",
	}}
	order.target = europe
	claim := &process{id: "claim", elements: []node{
		{kind: startEvent, id: "reported"},
		{kind: user, id: "assess", does: "claim-form"},
		{kind: subProcess, id: "settle", children: []node{
			{kind: startEvent, id: "settle_begin"},
			{kind: service, id: "fraud", does: "fraud.score", boundary: "fraudulent"},
			{kind: rule, id: "judge", does: "liability"},
			{kind: user, id: "approve", does: "approval-form"},
			{kind: endEvent, id: "settle_end"},
		}},
		{kind: timer, id: "objection", wait: "PT10M"},
		{kind: service, id: "pay_out", does: "payment.transfer", mapping: true},
		{kind: endEvent, id: "closed"},
	}}
	survey := &process{id: "survey", elements: []node{
		{kind: startEvent, id: "begin"},
		{kind: service, id: "invite", does: "mail.send", loop: parallel},
		{kind: service, id: "remind", does: "mail.send", loop: sequential},
		{kind: subProcess, id: "evaluate", loop: parallel, children: []node{
			{kind: startEvent, id: "evaluate_begin"},
			{kind: service, id: "rate", does: "text.rate"},
			{kind: endEvent, id: "evaluate_end"},
		}},
		{kind: endEvent, id: "published"},
	}}
	shipment := &process{id: "shipment", callable: true, elements: []node{
		{kind: startEvent, id: "handed_over"},
		{kind: service, id: "label", does: "label.print"},
		{kind: choice, id: "customs"},
		{kind: user, id: "declare", does: "customs-form"},
		{kind: timer, id: "transit", wait: "PT3M"},
		{kind: endEvent, id: "delivered"},
	}}
	sync := &process{id: "sync", elements: []node{
		{kind: startEvent, id: "due"},
		{kind: service, id: "extract", does: "sql.query"},
		{kind: service, id: "load", does: "http.request"},
		{kind: endEvent, id: "synced"},
	}}
	return []*process{order, europe, claim, survey, shipment, sync}
}

const versions = 2

// workers are unordered by name, so that the last one of a job is often not the greatest.
func workers() []string { return []string{"zeta", "alpha", "mu", "beta-7f3a", "omega@edge-17"} }

func people() []string { return []string{"anna.schmidt", "j.kowalski", "m.dubois", "sofía"} }

type failure struct{ code, message string }

func failures() []failure {
	return []failure{
		{"", "java.net.SocketTimeoutException: Read timed out\n\tat java.base/sun.nio.ch.NioSocketImpl.timedRead(NioSocketImpl.java:288)"},
		{"HTTP_503", "POST http://payment.svc/api/v1: 503 Service Unavailable"},
		{"", "quota of tenant \"acme\" used up"},
		{"IO", `open C:\spool\17.pdf: Zugriff verweigert`},
	}
}
