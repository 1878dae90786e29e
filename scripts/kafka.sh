#!/usr/bin/env bash
# Apache Kafka on loopback, for tests and for a first look: one node (KRaft: broker and controller in one), topics made when first used.
# Usage: kafka.sh start|stop|kill|reset|status [--port 9092] [--partitions 4] [--secure]
#   start    starts it unless it runs, waits until it answers, prints its address and what to write into the broker's configuration
#   stop     ends it in order; its data stays
#   kill     kill -9, as an outage; its data stays, and `start` goes on with it
#   reset    stops it and removes its data
#   status   prints what there is; ends with 0 if it runs, 1 if not
#   --secure, at the first start: it also listens with TLS, on the second port after the given one, for clients that prove who they are
#            by SASL (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512), and on the third for such with a certificate; `start` prints their names
# Servers on different ports are different servers with data of their own. The controller listens on the port after the given one.
# Needs Java 17 or later, and mvn for the first start, which fetches Kafka from Maven's repository. Without them it ends with 3.
# Environment: CARGO_TARGET_DIR (Kafka and its data lie below it, by default target/), KAFKA_HEAP_MB (512), KAFKA_VERSION (4.1.1),
# JAVA_HOME.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=daemon.sh
. "$(dirname "$0")/daemon.sh"

port=9092
partitions=4
heap_mb=${KAFKA_HEAP_MB:-512}
version=${KAFKA_VERSION:-4.1.1}
secure=
user=vehicles
command=${1:-}
shift || true
while [ $# -gt 0 ]; do
    case $1 in
        --port) port=$(number "$@"); shift 2 ;;
        --partitions) partitions=$(number "$@"); shift 2 ;;
        --secure) secure=1; shift ;;
        *) usage "unknown option $1" ;;
    esac
done
target=$(realpath -m "${CARGO_TARGET_DIR:-$(dirname "$0")/../target}")
name="Kafka $version"
jars=$target/servers/kafka-$version
state=$target/servers/kafka-$port
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

# fetch: the jars, unless they are there.
fetch() {
    command -v "$java" >/dev/null || missing "Java" "Install Java 17 or later; on Debian: apt-get install default-jre-headless maven"
    local major
    major=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    [ "${major:-0}" -ge 17 ] || missing "Java 17 or later" "This one is ${major:-unknown}."
    [ ! -e "$jars/complete" ] || return 0
    command -v mvn >/dev/null || missing "mvn, which fetches Kafka," "On Debian: apt-get install maven"
    echo "fetching Kafka $version" >&2
    rm -rf "$jars"
    mkdir -p "$jars"
    cat >"$jars/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>$version</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
POM
    mvn --quiet --batch-mode -f "$jars/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars" >"$jars/mvn.log" 2>&1 || {
        cat "$jars/mvn.log" >&2
        exit 1
    }
    touch "$jars/complete"
}

# Kafka comes without a place to log to; this one writes to standard error.
java_options=("-Xmx${heap_mb}m" -XX:+UseSerialGC -Djava.awt.headless=true -Dorg.slf4j.simpleLogger.showDateTime=true)

# Certificates and a password of this server's own, unless it has them; they are made once, so that clients go on trusting it.
keys=$state/secure
make_keys() {
    [ ! -e "$keys/complete" ] || return 0
    "$(dirname "$0")/install.sh" openssl openssl
    mkdir -p "$keys"
    (
        umask 077
        cd "$keys"
        head -c 18 /dev/urandom | base64 >password
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=Kafka of tests" -keyout ca.key -out ca.pem
        for name in server client; do
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" -keyout "$name.key" -out "$name.request"
            openssl x509 -req -days 3650 -in "$name.request" -CA ca.pem -CAkey ca.key -CAcreateserial -out "$name.pem" \
                -extfile <(echo "subjectAltName=IP:127.0.0.1")
        done
        # The form in which Kafka reads a key with its certificate.
        cat server.key server.pem >server.both
        touch complete
    ) 2>"$state/keys.log" || { cat "$state/keys.log" >&2; exit 1; }
}

start_server() {
    fetch
    [ -z "$secure" ] || make_keys
    local listeners="" map="" scram=()
    if [ -e "$keys/complete" ]; then
        listeners=",SASL://127.0.0.1:$((port + 2)),CERTIFICATE://127.0.0.1:$((port + 3))"
        map=",SASL:SASL_SSL,CERTIFICATE:SSL"
        scram=("SCRAM-SHA-256=[name=$user,password=$(cat "$keys/password")]" "SCRAM-SHA-512=[name=$user,password=$(cat "$keys/password")]")
    fi
    cat >"$state/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))$listeners
advertised.listeners=PLAINTEXT://127.0.0.1:$port$listeners
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT$map
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:$((port + 1))
log.dirs=$state/data
auto.create.topics.enable=true
num.partitions=$partitions
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
PROPERTIES
    if [ -n "$listeners" ]; then
        cat >>"$state/server.properties" <<PROPERTIES
ssl.keystore.type=PEM
ssl.keystore.location=$keys/server.both
ssl.truststore.type=PEM
ssl.truststore.location=$keys/ca.pem
listener.name.certificate.ssl.client.auth=required
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_$user="$(cat "$keys/password")";
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
PROPERTIES
    fi
    if [ ! -e "$state/data/meta.properties" ]; then
        # The id has no meaning, but must be 16 bytes in base64.
        "$java" "${java_options[@]}" -XX:TieredStopAtLevel=1 -cp "$jars/*" kafka.tools.StorageTool format --config "$state/server.properties" --cluster-id Y29yZWxhbmVjb3JlbGFuZQ "${scram[@]/#/--add-scram=}" >"$state/format.log" 2>&1 || {
            echo "kafka.sh: the storage could not be formatted:" >&2
            cat "$state/format.log" >&2
            exit 1
        }
    fi
    launch 'Kafka Server started' 120 "$java" "${java_options[@]}" "-Xms${heap_mb}m" \
        -cp "$jars/*" kafka.Kafka "$state/server.properties"
}

tell() {
    cat <<TEXT
$name answers on 127.0.0.1:$port (pid $pid, log $state/log)
in the broker's configuration, where your own cluster is named in the same way (host:port,host:port; for TLS and SASL see \`corelane config-reference\`):
    [[kafka]]
    name = "kafka"
    brokers = "127.0.0.1:$port"
TEXT
    [ ! -e "$keys/complete" ] || cat <<TEXT
with TLS and SASL:
    brokers = "127.0.0.1:$((port + 2))"
    tls = true
    tls_ca_path = "$keys/ca.pem"
    sasl = "scram_sha_512"
    sasl_username = "$user"
    sasl_password_path = "$keys/password"
with TLS and a certificate:
    brokers = "127.0.0.1:$((port + 3))"
    tls = true
    tls_ca_path = "$keys/ca.pem"
    tls_certificate_path = "$keys/client.pem"
    tls_key_path = "$keys/client.key"
TEXT
}

dispatch "$command"
