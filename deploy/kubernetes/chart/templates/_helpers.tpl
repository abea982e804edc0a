{{- define "sluice.component" -}}
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.component" . }}
app.kubernetes.io/part-of: sluice
{{- end }}

{{/* The labels of an object of the component . and its name. */}}
{{- define "sluice.metadata" -}}
name: {{ . }}
labels: {{- include "sluice.labels" . | nindent 2 }}
{{- end }}

{{/* Options of a program that connects to NATS as the user of its name. */}}
{{- define "sluice.nats" -}}
SLUICE_NATS: {{ join "," .root.Values.nats.servers }}
SLUICE_NATS_USER: {{ .user }}
SLUICE_NATS_PASSWORD_FILE: /run/sluice/nats/{{ .user }}
{{- if .root.Values.nats.tlsSecret }}
SLUICE_NATS_CA: /run/sluice/nats-tls/ca.crt
SLUICE_NATS_CERT: /run/sluice/nats-tls/tls.crt
SLUICE_NATS_KEY: /run/sluice/nats-tls/tls.key
{{- end }}
{{- end }}

{{/* Options of a program that connects to ClickHouse as user. */}}
{{- define "sluice.clickhouse" -}}
{{- with .root.Values.clickhouse -}}
SLUICE_CLICKHOUSE: clickhouse://{{ $.user }}@{{ join "," .servers }}/{{ .database }}
SLUICE_CLICKHOUSE_PASSWORD_FILE: /run/sluice/clickhouse/{{ $.user }}
{{- with .cluster }}
SLUICE_CLICKHOUSE_CLUSTER: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Options of a program that reads tokens. */}}
{{- define "sluice.tokens" -}}
SLUICE_TOKENS: /run/sluice/api/tokens.yaml
{{- with .jwt.issuer }}
SLUICE_JWT_ISSUER: {{ . }}
{{- end }}
{{- with .jwt.audience }}
SLUICE_JWT_AUDIENCE: {{ . }}
{{- end }}
{{- with .jwt.jwks }}
SLUICE_JWT_JWKS: {{ . }}
{{- end }}
{{- end }}

{{/*
The template of a pod: root, name, image, args, env (YAML), ports, and secrets, each a
folder of /run/sluice, the name of its secret, and the keys that the pod may read.
*/}}
{{- define "sluice.pod" -}}
{{- $values := index .root.Values .name -}}
{{- $memory := ternary (dict "SLUICE_MEMORY" (mul $values.memoryMiB 524288)) (dict) (hasKey . "ports") -}}
{{- $env := merge (dict) ($values.env | default dict) (fromYaml .env) $memory -}}
metadata:
  labels: {{- include "sluice.labels" .name | nindent 4 }}
spec:
  automountServiceAccountToken: false
  # Otherwise Kubernetes adds variables such as SLUICE_API_PORT, which the programs reject
  # as unknown options.
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
  {{- if hasKey . "spread" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: {{ .root.Values.spread }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector: {matchLabels: { {{- include "sluice.component" .name -}} }}
  {{- end }}
  {{- if not (hasKey . "ports") }}
  restartPolicy: OnFailure
  {{- end }}
  {{- with .root.Values.pod }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  containers:
    - name: {{ .name }}
      image: {{ .root.Values.image.registry }}/{{ .image }}:{{ .root.Values.image.tag }}
      {{- with get . "args" }}
      args: {{ toJson . }}
      {{- end }}
      env:
        {{- range $variable, $value := $env }}
        - {name: {{ $variable }}, value: {{ $value | toString | quote }}}
        {{- end }}
      {{- with get . "ports" }}
      ports:
        {{- range $port, $number := . }}
        - {name: {{ $port }}, containerPort: {{ $number }}}
        {{- end }}
      startupProbe: {httpGet: {path: /healthz, port: ops}, periodSeconds: 2, failureThreshold: 60}
      livenessProbe: {httpGet: {path: /healthz, port: ops}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 3}
      readinessProbe: {httpGet: {path: /readyz, port: ops}, periodSeconds: 5, timeoutSeconds: 5, failureThreshold: 2}
      {{- end }}
      {{- if eq .name "api" }}
      # The pod accepts posts until it is removed from the Service.
      lifecycle: {preStop: {sleep: {seconds: 5}}}
      {{- end }}
      resources:
        requests: {cpu: {{ $values.cpu }}, memory: {{ div $values.memoryMiB 2 }}Mi}
        limits: {memory: {{ $values.memoryMiB }}Mi}
      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
      volumeMounts:
        {{- range .secrets }}
        {{- if .secret }}
        - {name: {{ .name }}, mountPath: /run/sluice/{{ .name }}, readOnly: true}
        {{- end }}
        {{- end }}
  volumes:
    {{- range .secrets }}
    {{- if .secret }}
    - name: {{ .name }}
      secret:
        secretName: {{ .secret }}
        defaultMode: 0440
        items: [{{ range $i, $key := .keys }}{{ if $i }}, {{ end }}{key: {{ $key }}, path: {{ $key }}}{{ end }}]
    {{- end }}
    {{- end }}
{{- end }}

{{/* The Service of a component: name and ports. */}}
{{- define "sluice.service" -}}
apiVersion: v1
kind: Service
metadata: {{- include "sluice.metadata" .name | nindent 2 }}
spec:
  selector: {{- include "sluice.labels" .name | nindent 4 }}
  ports:
    {{- range $port, $number := .ports }}
    - {name: {{ $port }}, port: {{ $number }}, targetPort: {{ $port }}}
    {{- end }}
{{- end }}

{{- define "sluice.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "sluice.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "sluice.labels" . | nindent 6 }}
{{- end }}
