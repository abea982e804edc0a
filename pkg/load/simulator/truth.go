package simulator

// Truth is what really happened in an engine, whatever of its records arrives
// where, and in which order. All times are epoch milliseconds, 0 where it did
// not happen; all keys are -1 where there is none, as in the records.
type Truth struct {
	Instances   []*Instance
	Elements    []*Element
	Jobs        []*Job
	Incidents   []*Incident
	Variables   []*Variable
	UserTasks   []*UserTask
	Timers      []*Timer
	Waits       []*MessageWait
	Messages    []*Message
	Decisions   []*Decision
	Definitions []*Definition
}

// Process is the definition that something belongs to.
type Process struct {
	BpmnProcessID string
	Version       int64
	DefinitionKey int64
}

// Instance is a process instance.
type Instance struct {
	Key             int64
	Partition       int64
	Tenant          string
	First           Process // as it began
	Process         Process // as it is, after migrations
	ParentInstance  int64   // the instance that called this one
	ParentElement   int64   // the call activity in it
	EnteredAt       int64   // ELEMENT_ACTIVATING of the process
	StartedAt       int64   // ELEMENT_ACTIVATED
	CompletedAt     int64
	TerminatedAt    int64
	FirstSeen       int64 // of the events that carry its key, of the kinds in seen
	LastSeen        int64
	Incidents       int // created
	OpenIncidents   int // not resolved
	JobFailures     int // JOB FAILED
	MigratedElement int // ELEMENT_MIGRATED, the process itself included
}

// Element is an element instance; the process itself is one, with the key of
// the process instance.
type Element struct {
	Key          int64
	Instance     *Instance
	Process      Process // current
	FirstID      string  // element id before migrations
	ID           string  // current element id
	Type         string  // bpmnElementType
	FlowScope    int64   // -1 for a process
	EnteredAt    int64   // ELEMENT_ACTIVATING
	ActivatedAt  int64
	CompletedAt  int64
	TerminatedAt int64
	Position     int64      // of the first event
	BodyKey      int64      // of the multi-instance body it is a child of
	Follows      []*Element // after which it began; several of a join
}

// Job states, as the jobs fold names them.
const (
	JobCreated     = "CREATED"
	JobActivated   = "ACTIVATED"
	JobCompleted   = "COMPLETED"
	JobFailed      = "FAILED"
	JobTimedOut    = "TIMED_OUT"
	JobErrorThrown = "ERROR_THROWN"
	JobCanceled    = "CANCELED"
)

// Job is a job of a service task.
type Job struct {
	Key          int64
	Instance     *Instance
	Element      *Element
	Process      Process // current
	ElementID    string  // current
	Type         string
	State        string // by its last event or activation
	Worker       string // that had it last
	Retries      int64  // left now
	LeastRetries int64  // ever left
	Deadline     int64  // of the last activation; -1 without one
	CreatedAt    int64
	ActivatedAt  int64 // last; 0 when no batch told
	CompletedAt  int64
	CanceledAt   int64
	EndedAt      int64 // one of these, or when an event caught the error that it threw
	Failures     int
	TimeOuts     int
	ErrorsThrown int
	ErrorCode    string // of the last failure or thrown error
	ErrorMessage string
	FirstActive  int64 // first activation
	Activations  int
	LastSeen     int64 // last JOB event or activation
}

// Incident is an incident.
type Incident struct {
	Key          int64
	Instance     *Instance
	Element      *Element
	Job          int64 // -1 when it is not about a job
	Process      Process
	ElementID    string // current
	ErrorType    string
	ErrorMessage string
	CreatedAt    int64
	ResolvedAt   int64
}

// Variable is a variable of one scope.
type Variable struct {
	Key       int64
	Instance  *Instance
	Scope     int64 // the element instance that it belongs to
	Process   Process
	Name      string
	First     string // JSON
	Value     string // JSON
	CreatedAt int64
	UpdatedAt int64 // last change; its creation when there was none
	Changes   int   // UPDATED
}

// UserTask states, as the last event names them.
const (
	TaskCreated   = "CREATED"
	TaskCompleted = "COMPLETED"
	TaskCanceled  = "CANCELED"
)

// UserTask is a user task.
type UserTask struct {
	Key         int64
	Instance    *Instance
	Element     *Element
	Process     Process
	ElementID   string
	State       string
	Assignee    string // current
	Groups      string // candidate groups, JSON
	DueDate     string
	CreatedAt   int64
	AssignedAt  int64 // last to a person
	CompletedAt int64
	CanceledAt  int64
}

// Timer is a timer that an element waits for.
type Timer struct {
	Key         int64
	Instance    *Instance
	Element     *Element
	DueAt       int64
	CreatedAt   int64
	TriggeredAt int64
	CanceledAt  int64
}

// MessageWait is the subscription of an element to a message.
type MessageWait struct {
	Key          int64
	Instance     *Instance
	Element      *Element
	Process      Process
	Name         string
	Correlation  string
	CreatedAt    int64 // CREATING
	CorrelatedAt int64
	DeletedAt    int64
}

// Message is a message that was published.
type Message struct {
	Key         int64
	Tenant      string
	Name        string
	Correlation string
	PublishedAt int64
	ExpiresAt   int64
	ExpiredAt   int64
}

// Decision is one evaluation of a decision.
type Decision struct {
	Key          int64
	Instance     *Instance
	Element      *Element
	Process      Process // as it was then: no migration changes it
	ElementID    string  // likewise
	ID           string
	Name         string
	Version      int64
	DecisionKey  int64
	Requirements string
	Output       string // JSON; null when it failed
	Failure      string // empty when it did not
	FailedID     string // the decision that failed, of those that this one needs
	EvaluatedAt  int64
}

// Definition is a version of a process as it was deployed.
type Definition struct {
	Process
	Name       string // in its XML
	XML        string
	DeployedAt int64
}
