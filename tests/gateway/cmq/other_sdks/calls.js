// Every call of the package cmq-sdk of npm, unchanged; prints a JSON object of results by name. The folder of the SDK,
// the endpoint and the key are in the environment (see tests/gateway/cmq/test_other_sdks.py).
'use strict';

const http = require('http');
const net = require('net');

// The SDK has the hosts of CMQ built in. Their connections lead to the gateway; requests and signatures stay as they are.
const endpoint = new URL(process.env.CMQ_ENDPOINT);
const address = { host: endpoint.hostname, port: Number(endpoint.port) };
http.globalAgent.createConnection = (options, listener) => net.connect(address, listener);

const { CMQ } = require(process.env.CMQ_NODE_SDK);

async function main() {
  const results = {};
  const client = CMQ.NEW({
    path: '/v2/index.php',
    signatureMethod: process.env.CMQ_SIGNATURE,
    extranet: false,
    secretId: process.env.CMQ_ID,
    secretKey: process.env.CMQ_KEY,
    region: 'sh',
  });
  const code = async (answer) => (await answer).code;

  // queues
  const queueName = 'node';
  results.created = await code(client.createQueue({ queueName, rewindSeconds: 3600, visibilityTimeout: 60 }));
  const attributes = await client.getQueueAttributes({ queueName });
  results.queue = [attributes.code, attributes.rewindSeconds, attributes.visibilityTimeout];
  results.set = await code(client.setQueueAttributes({ queueName, visibilityTimeout: 30 }));
  results.listed = (await client.listQueue({ searchWord: 'node' })).queueList.map((entry) => entry.queueName);

  // messages
  for (const body of ['one espresso', '@body', 'ein Käffchen ☕ + 100 % = & ?']) {
    const sent = await client.sendMessage({ queueName, msgBody: body });
    const received = await client.receiveMessage({ queueName, pollingWaitSeconds: 1 });
    const deleted = await code(client.deleteMessage({ queueName, receiptHandle: received.receiptHandle }));
    (results.messages = results.messages || []).push([
      received.msgBody === body,
      received.msgId === sent.msgId && sent.code === 0,
      deleted,
    ]);
  }
  const bodies = Array.from({ length: 16 }, (_, index) => `{"index":${index}}`);
  results.batchSent = (await client.batchSendMessage({ queueName, msgBody: bodies })).msgList.length;
  const batch = await client.batchReceiveMessage({ queueName, numOfMsg: 16, pollingWaitSeconds: 1 });
  results.batch = batch.msgInfoList.map((message) => message.msgBody).join() === bodies.join();
  const receiptHandle = batch.msgInfoList.map((message) => message.receiptHandle);
  results.batchDeleted = await code(client.batchDeleteMessage({ queueName, receiptHandle }));
  results.empty = await code(client.receiveMessage({ queueName, pollingWaitSeconds: 0 }));
  const halfAnHourAgo = Math.floor(Date.now() / 1000) - 1800;
  results.rewound = await code(client.rewindQueue({ queueName, startConsumeTime: halfAnHourAgo }));

  // topics
  for (const [topicName, filterType] of [['node-tags', 1], ['node-keys', 2]]) {
    await client.createTopic({ topicName, filterType });
    await client.setTopicAttributes({ topicName, maxMsgSize: 4096 });
    const read = await client.getTopicAttributes({ topicName });
    (results.topics = results.topics || []).push([read.code, read.maxMsgSize, read.filterType]);
  }
  results.listedTopics = (await client.listTopic({ searchWord: 'node' })).totalCount;

  // subscriptions; the SDK writes into its arguments, so each call gets an object of its own
  await client.createQueue({ queueName: 'node-target' });
  const tags = { topicName: 'node-tags', subscriptionName: 'node-sub' };
  const keys = { topicName: 'node-keys', subscriptionName: 'node-sub' };
  const target = { protocol: 'queue', endpoint: 'node-target' };
  results.subscribed = [
    await code(client.subscribe({ ...tags, ...target, filterTag: ['red', 'big'] })),
    await code(client.subscribe({ ...keys, ...target, bindingKey: ['1.*'] })),
  ];
  const subscription = await client.getSubscriptionAttributes({ ...tags });
  results.subscription = [subscription.code, subscription.endpoint, subscription.filterTag];
  results.listedSubscriptions = (await client.listSubscriptionByTopic({ topicName: 'node-tags' })).totalCount;
  results.published = [
    await code(client.publishMessage({ topicName: 'node-tags', msgBody: 'a', msgTag: ['red'] })),
    await code(client.batchPublishMessage({ topicName: 'node-tags', msgBody: ['b', 'c'], msgTag: ['red', 'big'] })),
    await code(client.publishMessage({ topicName: 'node-keys', msgBody: 'd', routingKey: '1.2' })),
    await code(client.publishMessage({ topicName: 'node-keys', msgBody: 'e', routingKey: '2' })),
  ];
  const delivered = await client.batchReceiveMessage({ queueName: 'node-target', numOfMsg: 16, pollingWaitSeconds: 1 });
  results.delivered = delivered.msgInfoList.map((message) => message.msgBody);
  results.changed = await code(client.setSubscriptionAttributes({ ...tags, notifyStrategy: 'BACKOFF_RETRY' }));
  results.cleared = await code(client.clearSubscriptionFilterTags({ ...tags }));

  // the end
  results.inUse = await code(client.deleteTopic({ topicName: 'node-tags' }));
  for (const names of [tags, keys]) {
    await client.unsubscribe({ ...names });
    await client.deleteTopic({ topicName: names.topicName });
  }
  await client.deleteQueue({ queueName: 'node-target' });
  await client.deleteQueue({ queueName });
  results.deleted = await code(client.getQueueAttributes({ queueName }));
  console.log(JSON.stringify(results));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
