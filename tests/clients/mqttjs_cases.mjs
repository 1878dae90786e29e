// mqtt.js against a broker, in every protocol version, and the MQTT 5 features it reaches.
//
// Usage: node mqttjs_cases.mjs HOST PORT DIRECTORY-WITH-NODE_MODULES

import { createRequire } from 'node:module'
import { randomBytes } from 'node:crypto'
import assert from 'node:assert/strict'
import path from 'node:path'

const [host, port, directory] = process.argv.slice(2)
const require = createRequire(path.join(path.resolve(directory), 'index.js'))
const mqtt = require('mqtt')
const client = `mqtt.js ${require('mqtt/package.json').version}`
const patienceMs = 5000
let failed = 0

const fresh = (name) => `${name}-${randomBytes(5).toString('hex')}`
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

const within = (promise, what, ms = patienceMs) => {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} came`)), ms)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

// A queue that is awaited.
class Arrivals {
  #items = []
  #waiting = []
  push(item) {
    const next = this.#waiting.shift()
    next ? next(item) : this.#items.push(item)
  }
  get length() {
    return this.#items.length
  }
  async next(what = 'message', ms = patienceMs) {
    if (this.#items.length > 0) return this.#items.shift()
    let give
    const item = new Promise((resolve) => this.#waiting.push((give = resolve)))
    try {
      return await within(item, what, ms)
    } catch (error) {
      this.#waiting = this.#waiting.filter((each) => each !== give)
      throw error
    }
  }
}

const peers = new Set()

class Peer {
  messages = new Arrivals()
  disconnects = new Arrivals()

  static async open(version, options = {}) {
    const peer = new Peer()
    peer.client = mqtt.connect({
      host,
      port: Number(port),
      protocol: 'mqtt',
      protocolVersion: version,
      protocolId: version === 3 ? 'MQIsdp' : 'MQTT',
      clientId: fresh('js'),
      reconnectPeriod: 0,
      connectTimeout: patienceMs,
      ...options,
    })
    peers.add(peer)
    peer.client.on('message', (topic, payload, packet) => peer.messages.push({ topic, payload, packet }))
    peer.client.on('disconnect', (packet) => peer.disconnects.push(packet))
    peer.client.on('close', () => peer.disconnects.push({ closed: true }))
    peer.connack = await within(
      new Promise((resolve, reject) => {
        peer.client.once('connect', resolve)
        peer.client.on('error', reject)
      }),
      'CONNACK',
    )
    return peer
  }

  subscribe(topic, options = { qos: 0 }) {
    return within(this.client.subscribeAsync(topic, options), 'SUBACK')
  }

  publish(topic, payload = 'x', options = {}) {
    return within(this.client.publishAsync(topic, payload, options), 'acknowledgement')
  }

  async expect(topic, payload = 'x', qos = 0, retain = false) {
    const message = await this.messages.next()
    assert.deepEqual([message.topic, message.packet.qos, message.packet.retain], [topic, qos, retain])
    assert.ok(message.payload.equals(Buffer.from(payload)), `payload ${message.payload.subarray(0, 40)}`)
    return message.packet
  }

  async nothing(ms = 150) {
    await sleep(ms)
    assert.equal(this.messages.length, 0, 'nothing else comes')
  }

  close() {
    peers.delete(this)
    return within(this.client.endAsync(), 'end')
  }

  // The connection goes without a DISCONNECT.
  drop() {
    this.client.stream.destroy()
    return this.client.endAsync(true)
  }
}

async function everyQos(version) {
  const peer = await Peer.open(version)
  const topic = fresh('qos')
  assert.equal((await peer.subscribe(topic, { qos: 2 }))[0].qos, 2)
  for (const qos of [0, 1, 2]) {
    await peer.publish(topic, `q${qos}`, { qos })
    await peer.expect(topic, `q${qos}`, qos)
  }
  await peer.nothing()
  await peer.close()
}

async function order(version) {
  const peer = await Peer.open(version)
  const topic = fresh('order')
  await peer.subscribe(topic, { qos: 2 })
  for (const qos of [0, 1, 2]) {
    await Promise.all([...Array(100).keys()].map((number) => peer.publish(topic, `${number}`, { qos })))
    for (let number = 0; number < 100; number++) await peer.expect(topic, `${number}`, qos)
  }
  await peer.nothing()
  await peer.close()
}

async function retained(version) {
  const topic = fresh('retained')
  const publisher = await Peer.open(version)
  await publisher.publish(topic, 'kept', { qos: 1, retain: true })
  const late = await Peer.open(version)
  await late.subscribe(topic, { qos: 1 })
  await late.expect(topic, 'kept', 1, true)
  await publisher.publish(topic, '', { qos: 1, retain: true })
  await late.expect(topic, '', 1, false)
  const later = await Peer.open(version)
  await later.subscribe(topic, { qos: 1 })
  await later.nothing()
  for (const peer of [publisher, late, later]) await peer.close()
}

async function will(version) {
  const topic = fresh('will')
  const watcher = await Peer.open(version)
  await watcher.subscribe(topic, { qos: 1 })
  const victim = await Peer.open(version, { will: { topic, payload: Buffer.from('gone'), qos: 1, retain: false } })
  await victim.drop()
  await watcher.expect(topic, 'gone', 1)
  const polite = await Peer.open(version, { will: { topic, payload: Buffer.from('never'), qos: 1, retain: false } })
  await polite.close()
  await watcher.nothing()
  await watcher.close()
}

async function wildcards(version) {
  const root = fresh('wild')
  const peer = await Peer.open(version)
  await peer.subscribe(`${root}/+/b`)
  const other = await Peer.open(version)
  await other.subscribe(`${root}/#`)
  for (const topic of [`${root}/a/b`, `${root}/a/b/c`, root]) await peer.publish(topic, 'x', { qos: 1 })
  await peer.expect(`${root}/a/b`)
  await peer.nothing()
  for (const topic of [`${root}/a/b`, `${root}/a/b/c`, root]) await other.expect(topic)
  await within(peer.client.unsubscribeAsync(`${root}/+/b`), 'UNSUBACK')
  await peer.publish(`${root}/a/b`, 'x', { qos: 1 })
  await peer.nothing()
  await peer.close()
  await other.close()
}

async function persistent(version) {
  const [clientId, topic] = [fresh('persistent'), fresh('queue')]
  const options = { clientId, clean: false, ...(version === 5 && { properties: { sessionExpiryInterval: 60 } }) }
  const first = await Peer.open(version, options)
  if (version !== 3) assert.equal(first.connack.sessionPresent, false)
  await first.subscribe(topic, { qos: 2 })
  await first.close()
  const publisher = await Peer.open(version)
  for (let number = 0; number < 20; number++) await publisher.publish(topic, `${number}`, { qos: 2 })
  const again = await Peer.open(version, options)
  if (version !== 3) assert.equal(again.connack.sessionPresent, true)
  for (let number = 0; number < 20; number++) await again.expect(topic, `${number}`, 2)
  await again.nothing()
  await again.close()
  const clean = await Peer.open(version, { clientId, clean: true })
  if (version !== 3) assert.equal(clean.connack.sessionPresent, false)
  await clean.close()
  await publisher.close()
}

async function unicodeTopics(version) {
  const peer = await Peer.open(version)
  const topic = fresh('Straße/温度/🚗')
  await peer.subscribe(topic, { qos: 1 })
  await peer.publish(topic, '23 °C 雪', { qos: 1 })
  await peer.expect(topic, '23 °C 雪', 1)
  await peer.close()
}

async function payloads(version) {
  const peer = await Peer.open(version)
  const topic = fresh('payload')
  await peer.subscribe(topic, { qos: 2 })
  for (const size of [0, 127, 128, 16384, 65536, 900000]) {
    const payload = randomBytes(size)
    for (const qos of [0, 1, 2]) {
      await peer.publish(topic, payload, { qos })
      await peer.expect(topic, payload, qos)
    }
  }
  await peer.close()
}

async function takeover(version) {
  const clientId = fresh('takeover')
  const first = await Peer.open(version, { clientId })
  const second = await Peer.open(version, { clientId })
  const end = await first.disconnects.next('end of the first connection')
  if (version === 5) assert.equal(end.reasonCode, 0x8e, 'reason of the DISCONNECT')
  await second.subscribe(clientId)
  await second.publish(clientId)
  await second.expect(clientId)
  await second.close()
}

async function v5Properties() {
  const peer = await Peer.open(5)
  const topic = fresh('properties')
  await peer.subscribe(topic, { qos: 1 })
  await peer.publish(topic, 'text', {
    qos: 1,
    properties: {
      userProperties: { a: ['1', '2'], ü: '雪' },
      contentType: 'text/plain',
      responseTopic: 'answer',
      correlationData: Buffer.from([0, 1, 255]),
      payloadFormatIndicator: true,
      messageExpiryInterval: 100,
    },
  })
  const { properties } = await peer.expect(topic, 'text', 1)
  assert.deepEqual({ ...properties.userProperties }, { a: ['1', '2'], ü: '雪' })
  assert.deepEqual([properties.contentType, properties.responseTopic], ['text/plain', 'answer'])
  assert.ok(properties.correlationData.equals(Buffer.from([0, 1, 255])))
  assert.equal(properties.payloadFormatIndicator, true)
  assert.equal(properties.messageExpiryInterval, 100)
  await peer.close()
}

async function v5MessageExpiry() {
  const [clientId, topic] = [fresh('expiry'), fresh('expiring')]
  const options = { clientId, clean: false, properties: { sessionExpiryInterval: 60 } }
  const first = await Peer.open(5, options)
  await first.subscribe(topic, { qos: 1 })
  await first.close()
  const publisher = await Peer.open(5)
  await publisher.publish(topic, 'soon', { qos: 1, properties: { messageExpiryInterval: 1 } })
  await publisher.publish(topic, 'later', { qos: 1, properties: { messageExpiryInterval: 100 } })
  await sleep(2100)
  const again = await Peer.open(5, options)
  const { properties } = await again.expect(topic, 'later', 1)
  assert.ok(properties.messageExpiryInterval <= 98 && properties.messageExpiryInterval >= 90)
  await again.nothing()
  await again.close()
  await publisher.close()
}

async function v5TopicAlias() {
  const peer = await Peer.open(5, { autoAssignTopicAlias: true, properties: { topicAliasMaximum: 10 } })
  const topic = fresh('alias')
  await peer.subscribe(topic, { qos: 1 })
  // mqtt.js assigns an alias to the topic and leaves the topic out from then on; what it receives may be aliased, too.
  for (let number = 0; number < 5; number++) {
    await peer.publish(topic, `${number}`, { qos: 1 })
    await peer.expect(topic, `${number}`, 1)
  }
  await peer.close()
}

async function v5SubscriptionIdentifiers() {
  const peer = await Peer.open(5)
  const topic = fresh('identifier')
  await peer.subscribe(topic, { qos: 1, properties: { subscriptionIdentifier: 268435455 } })
  await peer.publish(topic, 'x', { qos: 1 })
  const { properties } = await peer.expect(topic, 'x', 1)
  assert.deepEqual([properties.subscriptionIdentifier].flat(), [268435455])
  await peer.close()
}

async function v5SharedSubscription() {
  const topic = fresh('shared')
  const members = await Promise.all([1, 2, 3].map(() => Peer.open(5)))
  for (const member of members) await member.subscribe(`$share/group/${topic}`, { qos: 1 })
  const publisher = await Peer.open(5)
  for (let number = 0; number < 60; number++) await publisher.publish(topic, `${number}`, { qos: 1 })
  await sleep(200)
  const counts = members.map((member) => member.messages.length)
  assert.equal(counts.reduce((sum, count) => sum + count), 60, `each message once: ${counts}`)
  assert.ok(Math.min(...counts) > 0, `every member works: ${counts}`)
  for (const peer of [...members, publisher]) await peer.close()
}

async function v5NoLocal() {
  const [peer, other] = [await Peer.open(5), await Peer.open(5)]
  const topic = fresh('local')
  await peer.subscribe(topic, { qos: 1, nl: true, rap: true })
  await peer.publish(topic, 'own', { qos: 1 })
  await peer.nothing()
  await other.publish(topic, 'other', { qos: 1, retain: true })
  await peer.expect(topic, 'other', 1, true)
  await other.publish(topic, '', { qos: 1, retain: true })
  await peer.close()
  await other.close()
}

async function v5ReasonCodes() {
  const peer = await Peer.open(5)
  const packet = (cmd) => new Promise((resolve) => peer.client.on('packetreceive', (each) => each.cmd === cmd && resolve(each)))
  const [puback, unsuback] = [packet('puback'), packet('unsuback')]
  await peer.publish(fresh('nobody'), 'x', { qos: 1 })
  assert.equal((await within(puback, 'PUBACK')).reasonCode, 0x10, 'PUBACK without subscribers')
  peer.client.unsubscribe(fresh('none'), () => {})
  assert.deepEqual([...(await within(unsuback, 'UNSUBACK')).granted], [0x11])
  await peer.close()
}

async function v5SessionExpiry() {
  const options = { clientId: fresh('short'), clean: false, properties: { sessionExpiryInterval: 1 } }
  await (await Peer.open(5, options)).drop()
  const second = await Peer.open(5, options)
  assert.equal(second.connack.sessionPresent, true)
  await second.close()
  await sleep(2300)
  const third = await Peer.open(5, options)
  assert.equal(third.connack.sessionPresent, false)
  await third.close()
}

async function v5WillDelay() {
  const topic = fresh('late-will')
  const watcher = await Peer.open(5)
  await watcher.subscribe(topic, { qos: 1 })
  const options = {
    clientId: fresh('testator'),
    clean: false,
    properties: { sessionExpiryInterval: 60 },
    will: { topic, payload: Buffer.from('gone'), qos: 1, retain: false, properties: { willDelayInterval: 1 } },
  }
  await (await Peer.open(5, options)).drop()
  await watcher.nothing(500)
  const again = await Peer.open(5, options)
  await watcher.nothing(1600)
  await again.drop()
  await watcher.nothing(500)
  await watcher.expect(topic, 'gone', 1)
  await watcher.close()
}

async function v5MaximumPacketSize() {
  const topic = fresh('size')
  const small = await Peer.open(5, { properties: { maximumPacketSize: 1000 } })
  await small.subscribe(topic, { qos: 1 })
  const publisher = await Peer.open(5)
  await publisher.publish(topic, 'x'.repeat(5000), { qos: 1 })
  await publisher.publish(topic, 'fits', { qos: 1 })
  await small.expect(topic, 'fits', 1)
  await small.close()
  await publisher.close()
}

async function v5ReceiveMaximum() {
  const topic = fresh('window')
  const slow = await Peer.open(5, { properties: { receiveMaximum: 1 } })
  await slow.subscribe(topic, { qos: 2 })
  const publisher = await Peer.open(5)
  await Promise.all([...Array(50).keys()].map((number) => publisher.publish(topic, `${number}`, { qos: 2 })))
  for (let number = 0; number < 50; number++) await slow.expect(topic, `${number}`, 2)
  await slow.close()
  await publisher.close()
}

async function run(name, operation, ...operands) {
  const begin = performance.now()
  try {
    await within(operation(...operands), 'end of the case', 20000)
    console.log(`ok   ${client}: ${name} (${((performance.now() - begin) / 1000).toFixed(2)} s)`)
  } catch (error) {
    failed++
    const at = /mqttjs_cases\.mjs:(\d+)/.exec(error.stack.replaceAll(/.*(within|Arrivals|expect).*\n/g, ''))?.[1]
    console.log(`FAIL ${client}: ${name}: ${error.message.replaceAll('\n', ' ').slice(0, 300)} (line ${at})`)
  }
  for (const peer of peers) peer.client.end(true)
  peers.clear()
}

for (const [label, version] of [['v3.1', 3], ['v3.1.1', 4], ['v5', 5]]) {
  for (const each of [everyQos, order, retained, will, wildcards, persistent, unicodeTopics, payloads, takeover]) {
    await run(`${label} ${each.name}`, each, version)
  }
}
for (const each of [
  v5Properties,
  v5MessageExpiry,
  v5TopicAlias,
  v5SubscriptionIdentifiers,
  v5SharedSubscription,
  v5NoLocal,
  v5ReasonCodes,
  v5SessionExpiry,
  v5WillDelay,
  v5MaximumPacketSize,
  v5ReceiveMaximum,
]) {
  await run(each.name, each)
}
process.exit(failed > 0 ? 1 : 0)
