export default {
  'sign-in.title': ['Sign in', '登录'],
  'sign-in.id': ['Secret id', '密钥 SecretId'],
  'sign-in.id-hint': ['The pair SECRET_ID:SECRET_KEY can be pasted here.', '也可以在此粘贴 SECRET_ID:SECRET_KEY。'],
  'sign-in.secret': ['Secret key', '密钥 SecretKey'],
  'sign-in.wrong': ['There is no such key pair, or the key is disabled.', '密钥不存在、不匹配或已被禁用。'],
  'sign-in.link': ['Or sign in without typing, from the machine of the broker:', '或者在服务所在的机器上执行命令，免输入登录：'],
  'sign-in.where': [
    'The first start of the broker writes the key of the account admin to admin.context.toml in its data folder.',
    '服务首次启动时，会把 admin 账号的密钥写入数据目录下的 admin.context.toml。',
  ],
  'sign-in.kept': [
    'The secret is sent once and not kept in the browser. The session ends after 30 minutes without use.',
    '密钥只发送一次，不会保存在浏览器中。30 分钟无操作后会话自动结束。',
  ],
};
